"""Preflight, engine and unit on the practice node: the old service serves throughout, and each step is done once."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from console.checkpoint.patch import PatchOutcome
from console.deploy.question import merged, redeploy_question
from console.deploy.step import Context, Needed, Satisfied
from console.deploy.steps import engine, preflight, unit
from console.errors import DownloadFailed, Refused, UnitFailed
from console.events import Event, Found, Progressed
from console.node.facts import Facts, read_facts
from console.node.ssh import SshNode
from console.profile.load import SHIPPED, find_profile
from console.profile.model import Profile
from console.rehearsal.practice import Practice
from tests.rehearsal.conftest import log_in


async def context_on(node: SshNode, profile: Profile, run: str = "r1") -> tuple[Context, list[Event]]:
    question = merged((redeploy_question(profile), engine.question(profile)))
    events: list[Event] = []

    async def confirm(asked: str, word: str) -> bool:
        return False

    async def refresh() -> Facts:
        ctx.facts = await read_facts(node, question)
        return ctx.facts

    ctx = Context(node, profile, await read_facts(node, question), events.append, confirm, refresh, run=run)
    return ctx, events


def with_engine(profile: Profile, **changes: Any) -> Profile:
    return profile.model_copy(update={"vllm": profile.vllm.model_copy(update=changes)})


def practised() -> Profile:
    return find_profile("rehearsal", [SHIPPED])


def refusals(events: list[Event]) -> list[tuple[str, str]]:
    return [(event.rule, event.text) for event in events if isinstance(event, Found) and event.level == "refuse"]


async def test_a_new_engine_is_made_beside_the_old_one(practice: Practice) -> None:
    async with log_in(practice) as node:
        profile = with_engine(practised(), venv="~/opt/new-vllm")
        ctx, events = await context_on(node, profile)
        assert isinstance(await engine.STEP.check(ctx), Needed)
        await engine.STEP.apply(ctx)
        evidence = await engine.STEP.verify(ctx)
        assert evidence.startswith(f"vLLM 0.16.0 in {practice.root}/opt/new-vllm, Python ")
        assert evidence.endswith("imports")
        told = [event.text for event in events if isinstance(event, Progressed)]
        assert "installing vLLM 0.16.0" in told
        assert any("Prepared" in text for text in told)
        await ctx.refresh()
        assert isinstance(await engine.STEP.check(ctx), Satisfied)
        # another run did not make it, so it does not remove it
        other, _ = await context_on(node, profile, run="r2")
        await engine.STEP.undo(other)
        assert (Path(practice.root) / "opt/new-vllm/bin/vllm").exists()
        await engine.STEP.undo(ctx)
        assert not (Path(practice.root) / "opt/new-vllm").exists()


async def test_an_engine_that_does_not_exist(practice: Practice) -> None:
    async with log_in(practice) as node:
        ctx, _ = await context_on(node, with_engine(practised(), venv="~/opt/none", version="9.9.9"))
        with pytest.raises(DownloadFailed, match="No solution found"):
            await engine.STEP.apply(ctx)
        await ctx.refresh()
        # what was begun is known as ours, and the next run begins anew
        assert isinstance(await engine.STEP.check(ctx), Needed)
        right, _ = await context_on(node, with_engine(practised(), venv="~/opt/none"))
        await engine.STEP.apply(right)
        assert "0.16.0" in await engine.STEP.verify(right)


async def test_the_old_engine_is_never_changed(practice: Practice) -> None:
    async with log_in(practice) as node:
        ctx, _ = await context_on(node, with_engine(practised(), venv="~/opt/vllm-0.33.0"))
        with pytest.raises(Refused, match=r"holds vLLM 0\.33\.0"):
            await engine.STEP.check(ctx)


async def test_preflight_passes_while_the_old_model_serves(practice: Practice) -> None:
    async with log_in(practice) as node:
        ctx, events = await context_on(node, practised())
        outcome = await preflight.STEP.check(ctx)
        assert isinstance(outcome, Satisfied), refusals(events)
        rules = {event.rule: event.text for event in events if isinstance(event, Found)}
        assert rules["gpu-count"].startswith("8 x NVIDIA RTX PRO 6000 Blackwell")
        assert "vllm-glm5.service" in rules["replaces"]


async def test_the_installed_vllm_judges_the_flags_once(practice: Practice) -> None:
    async with log_in(practice) as node:
        profile = with_engine(practised(), venv="~/opt/vllm-0.33.0", version="0.33.0")
        ctx, events = await context_on(node, profile)
        await preflight.STEP.check(ctx)
        told = [event.text for event in events if isinstance(event, Found) and event.rule == "flags"]
        assert told == ["8 flags and 1 VLLM_* variables are known to vllm serve --help of 0.33.0"]
        cached = list((Path(practice.root) / "var/lib/relaunch/cache").glob("flags-*.json"))
        assert len(cached) == 1
        marked = json.loads(cached[0].read_text())
        marked["flags"].pop("max-num-seqs")
        cached[0].write_text(json.dumps(marked))
        await ctx.refresh()
        with pytest.raises(Refused, match="has no --max-num-seqs"):
            await preflight.STEP.check(ctx)


async def test_a_removed_flag_is_refused_before_anything_stops(practice: Practice) -> None:
    async with log_in(practice) as node:
        serve = practised().serve.model_copy(update={"flags": {"disable-log-requests": True}})
        profile = with_engine(practised(), version="0.33.0", venv="~/opt/vllm-0.33.0").model_copy(
            update={"serve": serve}
        )
        ctx, _ = await context_on(node, profile)
        with pytest.raises(Refused, match="--disable-log-requests") as caught:
            await preflight.STEP.check(ctx)
        assert "leave it out" in caught.value.remedy
        assert (await ctx.refresh()).units["vllm-glm5.service"].active == "active"


async def test_the_unit_is_written_once_and_comes_back(practice: Practice) -> None:
    async with log_in(practice) as node:
        profile = with_engine(practised(), venv="~/opt/vllm-0.33.0")  # there from the beginning
        ctx, _ = await context_on(node, profile)
        ctx.found["patch"] = PatchOutcome(f"{practice.root}/srv/models/Kimi-K2.5-NVFP4")
        first = await unit.STEP.check(ctx)
        assert isinstance(first, Needed)
        assert "+KillMode=control-group" in first.changes[0].diff.splitlines()
        await unit.STEP.apply(ctx)
        assert "systemd-analyze verify is content" in await unit.STEP.verify(ctx)
        await ctx.refresh()
        assert isinstance(await unit.STEP.check(ctx), Satisfied)
        path = Path(practice.root) / "etc/systemd/system/vllm-kimi.service"
        written = path.read_text()

        service = profile.service.model_copy(update={"limits": {"LimitNOFILE": "banana"}})
        bad, _ = await context_on(node, profile.model_copy(update={"service": service}))
        bad.found["patch"] = ctx.found["patch"]
        await unit.STEP.apply(bad)
        with pytest.raises(UnitFailed, match="verify complains"):
            await unit.STEP.verify(bad)
        assert path.read_text() == written
        await unit.STEP.undo(ctx)
        assert not path.exists()


async def test_a_plan_renders_the_unit_before_anything_is_downloaded(practice: Practice) -> None:
    async with log_in(practice, read_only=True) as node:
        ctx, _ = await context_on(node, practised())
        ctx.facts = dataclasses.replace(ctx.facts, folders={})
        needed = await unit.STEP.check(ctx)
        assert isinstance(needed, Needed)
        assert f"{practice.root}/srv/models/Kimi-K2.5-NVFP4" in needed.changes[0].diff


async def test_a_vllm_that_was_just_installed_judges_the_flags_before_downtime(practice: Practice) -> None:
    """A profile whose flag only the table could judge: refused by the unit step, once the program itself can be asked."""
    async with log_in(practice) as node:
        serve = practised().serve.model_copy(update={"flags": {"brand-new-thing": 1}})
        profile = with_engine(practised(), venv="~/opt/vllm-0.33.0", version="0.33.0").model_copy(
            update={"serve": serve}
        )
        ctx, _ = await context_on(node, profile)
        ctx.found["patch"] = PatchOutcome("/m")
        with pytest.raises(Refused, match="has no --brand-new-thing"):
            await unit.STEP.apply(ctx)
        assert not (Path(practice.root) / "etc/systemd/system/vllm-kimi.service").exists()
