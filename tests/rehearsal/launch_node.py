"""A practice node on which everything up to the launch has been done, for the tests of launch to keep."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from console.checkpoint.patch import planned
from console.deploy import steps
from console.deploy.question import redeploy_question
from console.deploy.step import Context, Needed, Satisfied
from console.deploy.unit import unit_text
from console.events import Event
from console.node import journal, systemd
from console.node.base import Node, succeeded
from console.node.facts import Facts, read_facts
from console.node.ssh import connect
from console.node.target import Target
from console.profile.load import SHIPPED, find_profile
from console.profile.model import Profile
from console.rehearsal import practice
from console.rehearsal.checkpoint import make_checkpoint
from console.rehearsal.practice import Practice
from console.rehearsal.vllm.install import install_vllm

PACE = {"load": 0.15, "tokens": 0.2, "install": 0.05, "hub": 0.05}
OLD = "vllm-glm5.service"


@dataclass
class Deployment:
    """A context as the walk makes one, the events so far, and the practice node."""

    ctx: Context
    node: Node
    practice: Practice
    events: list[Event] = field(default_factory=list)

    def of(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    async def bring_about(self, *names: str) -> dict[str, str]:
        """Each step as the walk does it; its evidence by name."""
        told = {}
        for name in names:
            step = steps.step(name)
            outcome = await step.check(self.ctx)
            if isinstance(outcome, Satisfied):
                told[name] = f"already: {outcome.evidence}"
                continue
            await step.apply(self.ctx)
            told[name] = await step.verify(self.ctx)
            await self.ctx.refresh()
        return told

    async def needed(self, name: str) -> str | None:
        """What the step would do, or None when it is satisfied."""
        outcome = await steps.step(name).check(self.ctx)
        return "; ".join(change.text for change in outcome.changes) if isinstance(outcome, Needed) else None

    async def systemctl(self, *words: str) -> str:
        argv = ("systemctl", *words)
        return succeeded(await self.node.run(argv, timeout=60, sudo=True), argv).out

    async def unit(self, name: str) -> Any:
        return await systemd.unit_state(self.node, name)


def profile_for(root: Path, **changes: Any) -> Profile:
    found = find_profile("rehearsal", (SHIPPED,))
    return found.model_copy(update=changes)


async def old_serves(node: Node) -> None:
    """Wait for the old model's ready line, as an operator finds it."""
    async with asyncio.timeout(60), journal.follow(node, OLD) as entries:
        async for entry in entries:
            if "Application startup complete" in entry.message:
                return


@asynccontextmanager
async def deployment(
    state: Path, *, faults: Sequence[str] = (), profile: Profile | None = None, stopped: bool = True
) -> AsyncIterator[Deployment]:
    """The practice node with model, venv, overlay and unit in place and the old service stopped."""
    root = state / "root"
    root.mkdir(parents=True, exist_ok=True)
    (root / "pace.json").write_text(json.dumps(PACE))
    running = await practice.ensure(state, faults=tuple(faults))
    try:
        profile = profile or profile_for(root)
        make_checkpoint(root / profile.model.folder.removeprefix("~/"))
        install_vllm(root, root / profile.vllm.venv.removeprefix("~/"), profile.vllm.version)
        target = Target(
            name="practice", host=running.host, port=running.port, user=running.user,
            identity_files=(str(running.client_key),), known_hosts=(), host_key=running.host_key.split(" ", 1)[1],
        )  # fmt: skip
        async with connect(target) as node:
            await old_serves(node)
            yield await _prepared(node, running, profile, stopped=stopped)
    finally:
        await practice.stop(state)


async def _prepared(node: Node, running: Practice, profile: Profile, *, stopped: bool) -> Deployment:
    question = redeploy_question(profile)
    events: list[Event] = []

    async def agree(question: str, word: str) -> bool:
        return True

    async def refresh() -> Facts:
        ctx.facts = await read_facts(node, question)
        return ctx.facts

    facts = await read_facts(node, question)
    ctx = Context(node, profile, facts, events.append, agree, refresh, run="0001")
    made = Deployment(ctx, node, running, events)
    await made.bring_about("patch", "unit")
    assert facts.units[OLD].active == "active"
    if stopped:
        ctx.found["stopped"] = (OLD,)
        await made.systemctl("stop", OLD)
        await refresh()
    assert ctx.facts.units[profile.service.unit].text == unit_text(profile, ctx.facts, planned(ctx))
    return made
