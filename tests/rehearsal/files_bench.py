"""A context on a practice node for the steps that deal with the model's files: `files`, and `bench` for one's own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from console.deploy.question import redeploy_question
from console.deploy.step import Context, Satisfied
from console.deploy.steps import step
from console.events import Event
from console.node.facts import Facts, read_facts
from console.node.ssh import SshNode
from console.profile.load import find_profile
from console.rehearsal.practice import Practice
from console.rehearsal.vllm.install import install_vllm
from console.text import Secret


@dataclass
class Bench:
    """A context on a practice node, counting what it costs."""

    ctx: Context
    root: Path
    events: list[Event] = field(default_factory=list)
    execs: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    agrees: bool = True
    room: Callable[[], int] | None = None
    """Bytes that the model's disk has free, in place of what the test machine's real disk has."""

    @property
    def folder(self) -> Path:
        return self.root / "srv/models/Kimi-K2.5-NVFP4"

    async def bring_about(self, name: str) -> str:
        """One step as the walk does it; its evidence."""
        chosen = step(name)
        outcome = await chosen.check(self.ctx)
        if isinstance(outcome, Satisfied):
            return outcome.evidence
        await chosen.apply(self.ctx)
        await self.ctx.refresh()
        return await chosen.verify(self.ctx)

    async def anew(self) -> None:
        """As a new run finds it: fresh facts, nothing found yet."""
        self.ctx.found.clear()
        await self.ctx.refresh()


@asynccontextmanager
async def bench(practice: Practice, node: SshNode, **changes: Any) -> AsyncIterator[Bench]:
    profile = find_profile("rehearsal")
    model = profile.model.model_copy(update={"endpoint": practice.hub})
    profile = profile.model_copy(update={"model": model, **changes})
    root = Path(practice.root)
    await asyncio.to_thread(install_vllm, root, root / "opt/vllm-0.16.0", "0.16.0")
    made = Bench(ctx=None, root=root)  # type: ignore[arg-type]

    async def refresh() -> Facts:
        facts = await read_facts(node, redeploy_question(made.ctx.profile))
        if made.room is not None:
            disks = {path: replace(disk, free=made.room()) for path, disk in facts.disks.items()}
            facts = replace(facts, disks=disks)
        made.ctx.facts = facts
        return facts

    async def confirm(question: str, word: str) -> bool:
        made.words.append(word)
        return made.agrees

    facts = await read_facts(node, redeploy_question(profile))
    made.ctx = Context(
        node=node, profile=profile, facts=facts, emit=made.events.append, confirm=confirm, refresh=refresh,
        token=Secret("hf_sentinelsentinelsentinel"),
    )  # fmt: skip
    yield made


@pytest.fixture
async def files(practice: Practice, practice_node: SshNode) -> AsyncIterator[Bench]:
    async with bench(practice, practice_node) as made:
        yield made
