"""Inspect, stop and drain on the practice node, and what they do when the old service does not go as it should."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from console.deploy import probe, steps
from console.deploy.question import redeploy_question
from console.deploy.step import Context, Needed, Satisfied
from console.errors import NotReady
from console.events import Downtime, Event, Found, Progressed
from console.node import systemd
from console.node.facts import Facts, read_facts
from console.node.ssh import SshNode
from console.profile.load import find_profile
from console.rehearsal.practice import Practice
from tests.rehearsal.conftest import NewPractice, log_in

OLD = "vllm-glm5.service"
CAP = 60.0


@dataclass
class Bench:
    ctx: Context
    events: list[Event]
    practice: Practice

    def of(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    async def bring_about(self, name: str) -> str:
        """The step as the walk does it; its evidence."""
        step = steps.step(name)
        outcome = await step.check(self.ctx)
        assert isinstance(outcome, Needed), outcome
        await step.apply(self.ctx)
        told = await step.verify(self.ctx)
        await self.ctx.refresh()
        return told


@asynccontextmanager
async def bench(new_practice: NewPractice, faults: Sequence[str] = ()) -> AsyncIterator[Bench]:
    """The practice node with its old model serving."""
    profile = find_profile("rehearsal")
    question = redeploy_question(profile)
    async with new_practice(faults=tuple(faults)) as practice, log_in(practice) as node:
        async with asyncio.timeout(CAP):
            while await probe.health(node.http(8000)) != 200:  # noqa: ASYNC110 - a port gives no event when it opens
                await asyncio.sleep(0.05)
        events: list[Event] = []

        async def agree(question: str, word: str) -> bool:
            return True

        async def refresh() -> Facts:
            ctx.facts = await read_facts(node, question)
            return ctx.facts

        facts = await read_facts(node, question)
        ctx = Context(node, profile, facts, events.append, agree, refresh, run="0001")
        yield Bench(ctx, events, practice)


async def state(node: SshNode | Any, unit: str) -> str:
    return (await systemd.unit_state(node, unit)).active


async def test_the_old_service_is_stopped_and_the_gpus_are_drained_and_it_comes_back(new_practice: NewPractice) -> None:
    async with bench(new_practice) as made:
        ctx = made.ctx
        inspected = await steps.step("inspect").check(ctx)
        assert isinstance(inspected, Satisfied)
        assert "8 × NVIDIA RTX PRO 6000 Blackwell Server Edition, 95.6 GiB each" in inspected.evidence
        assert [event for event in made.of(Found) if event.level == "refuse"] == []

        planned = await steps.step("drain").check(ctx)
        assert isinstance(planned, Needed)
        assert OLD in planned.changes[0].text

        told = await made.bring_about("stop")
        assert told.startswith(f"{OLD} inactive")
        assert "cgroup empty" in told
        assert "port 8000 closed" in told
        assert ctx.found["stopped"] == (OLD,)
        assert [event.state for event in made.of(Downtime)] == ["started"]
        assert await state(ctx.node, OLD) == "inactive"

        told = await made.bring_about("drain")
        assert told.startswith("8 GPUs idle")
        assert isinstance(await steps.step("stop").check(ctx), Satisfied)

        await steps.step("drain").undo(ctx)
        await steps.step("stop").undo(ctx)
        assert await state(ctx.node, OLD) == "active"
        await steps.step("stop").undo(ctx)
        assert await state(ctx.node, OLD) == "active"


async def test_a_service_that_hangs_on_sigterm_is_ended_by_systemd_and_that_is_told(new_practice: NewPractice) -> None:
    async with bench(new_practice, ["slow-stop"]) as made:
        told = await made.bring_about("stop")
        assert f"{OLD} failed (timeout)" in told
        assert any("stop-sigterm" in event.text for event in made.of(Progressed))
        assert "8 GPUs idle" in await made.bring_about("drain")


async def test_a_stranger_on_a_gpu_is_named_and_left_alone(new_practice: NewPractice) -> None:
    async with bench(new_practice, ["orphan"]) as made:
        await made.bring_about("stop")
        step = steps.step("drain")
        assert isinstance(await step.check(made.ctx), Needed)
        with pytest.raises(NotReady) as caught:
            await step.apply(made.ctx)
        assert "held by pid" in caught.value.message
        assert caught.value.remedy
        facts = await made.ctx.refresh()
        assert facts.gpus is not None
        holders = {process.pid for gpu in facts.gpus.gpus for process in gpu.processes}
        assert holders, "it was not killed"
        assert all(f"pid {pid}" in caught.value.message for pid in holders)


async def test_nothing_is_stopped_twice_when_the_link_is_lost_in_the_middle(new_practice: NewPractice) -> None:
    async with bench(new_practice) as made:
        await made.bring_about("stop")
        assert isinstance(await steps.step("stop").check(made.ctx), Satisfied)
        assert len(made.of(Downtime)) == 1
