"""The facade between front ends and the redeploy: a node, a profile, a store; runs scripts, keeps the snapshot.

Loop-agnostic and free of any screen. A front end chooses its side: `--script` subscribes to the event stream, a screen
reads `snapshot` on a timer. Every event is in the store before a subscriber sees it.
"""

from __future__ import annotations

import asyncio
import getpass
import os
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from console import state
from console.deploy.fix import fix_for
from console.deploy.lock import Owner, held
from console.deploy.question import redeploy_question
from console.deploy.ready import probe_serving
from console.deploy.release import already_serving, serves_again
from console.deploy.rollback import served_before
from console.deploy.run import Emitter, Walk, ending
from console.deploy.script import Script
from console.deploy.scripted import scripted_steps
from console.deploy.step import Context
from console.deploy.store import Store
from console.errors import RelaunchError
from console.events import Event, RunEnded, RunStarted
from console.node.base import Node
from console.node.facts import Facts, read_facts
from console.profile.model import Profile
from console.text import Secret

FIXES = 3
"""Remedies that one run applies by itself before it gives up."""

Confirm = Callable[[str, str], Awaitable[bool]]


async def decline(question: str, word: str) -> bool:
    """The answer where nobody can be asked."""
    return False


async def agree(question: str, word: str) -> bool:
    """The answer under --yes."""
    return True


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How a script is run."""

    dry_run: bool = False
    fix: bool = False
    rehearsal: bool = False
    confirm: Confirm = decline
    token: Secret = field(default_factory=lambda: Secret(""))
    evidence: Path | None = None
    """Folder that receives one folder per run with what was captured on failure."""
    lock_wait: float = 0.0
    """Seconds to wait for someone else's lock."""


class Engine:
    """One node, one profile, and the run in hand."""

    def __init__(self, node: Node, profile: Profile, store: Store) -> None:
        self.node = node
        self.profile = profile
        self.store = store
        self.snapshot = state.Snapshot()
        self._subscribers: list[Callable[[Event], None]] = []

    def subscribe(self, sink: Callable[[Event], None]) -> None:
        """Call `sink` with every event, after the store has it."""
        self._subscribers.append(sink)

    async def facts(self) -> Facts:
        """The node's facts as the redeploy needs them: one exec."""
        return await read_facts(self.node, redeploy_question(self.profile))

    async def run(self, script: Script, options: RunOptions) -> RunEnded:
        """Run a script to its end, whatever that is; the last event of the run says which. Only a cancellation
        passes through, after the run has been closed as interrupted."""
        began = time.time()
        clock = time.monotonic()
        run = self.store.begin(
            script.name,
            self.node.name,
            self.profile.name,
            script=script.name,
            rehearsal=options.rehearsal,
            started=began,
        )
        emit = Emitter((lambda event: self._keep(run, event),), (options.token,))
        emit(self._started(run, script, options, began))
        error: BaseException | None = None
        changed: tuple[str, ...] = ()
        try:
            changed = await self._run(run, script, options, emit)
        except (Exception, asyncio.CancelledError) as caught:
            error = caught
        code, text, remedy = ending(error, changed, dry_run=options.dry_run)
        end = RunEnded(time=time.time(), run=run, code=code, text=text, remedy=remedy, seconds=time.monotonic() - clock)
        emit(end)
        if isinstance(error, asyncio.CancelledError):
            raise error
        if error is not None and not isinstance(error, RelaunchError) and os.environ.get("RELAUNCH_DEBUG"):
            raise error
        return end

    async def _run(self, run: str, script: Script, options: RunOptions, emit: Emitter) -> tuple[str, ...]:
        ctx = await self._context(run, options, emit)
        walk = Walk(
            ctx, scripted_steps(script, lambda: self.snapshot), serves_again, lambda ctx: bool(served_before(ctx))
        )
        if options.fix:
            walk.remedy = self._apply_fix
        if "launch" in script.names() and already_serving(ctx):
            await probe_serving(ctx)  # systemd calls a wedged server active; only an answer says that it serves
        if options.dry_run or self.node.read_only:
            return await walk.plan()
        owner = Owner.here(run=run, verb=script.name, who=getpass.getuser(), where=socket.gethostname())
        async with held(self.node, ctx.facts, owner, wait=options.lock_wait, emit=emit):
            return await walk.walk()

    async def _context(self, run: str, options: RunOptions, emit: Emitter) -> Context:
        evidence = None if options.evidence is None else options.evidence / run
        ctx = Context(
            node=self.node,
            profile=self.profile,
            facts=await self.facts(),
            emit=emit,
            confirm=options.confirm,
            refresh=self.facts,
            run=run,
            token=options.token,
            options={"evidence_dir": evidence} if evidence else {},
        )

        async def refresh() -> Facts:
            ctx.facts = await self.facts()
            return ctx.facts

        ctx.refresh = refresh
        return ctx

    async def _apply_fix(self, ctx: Context, error: RelaunchError) -> bool:
        """Change the profile by the remedy that triage named, once per remedy, and say what was changed."""
        diagnosis = ctx.found.get("diagnosis")
        tried: set[str] = ctx.found.setdefault("fixes", set())
        if diagnosis is None or len(tried) >= FIXES:
            return False
        patched = bool(getattr(ctx.found.get("patch"), "overlay", ""))
        edit = fix_for(ctx.profile, diagnosis, patched=patched)
        if edit is None or edit.name in tried:
            return False
        tried.add(edit.name)
        ctx.emit(edit.event(time.time()))
        self.profile = ctx.profile = edit.profile
        ctx.found = {"fixes": tried}
        await ctx.refresh()
        return True

    def _started(self, run: str, script: Script, options: RunOptions, began: float) -> RunStarted:
        return RunStarted(
            time=began,
            run=run,
            verb=script.name,
            node=self.node.name,
            profile=self.profile.name,
            steps=script.names(),
            rehearsal=options.rehearsal,
            read_only=self.node.read_only or options.dry_run,
        )

    def _keep(self, run: str, event: Event) -> None:
        self.store.append(run, event)
        self.snapshot = state.apply(self.snapshot, event)
        for sink in self._subscribers:
            sink(event)
