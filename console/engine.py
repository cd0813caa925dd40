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
from console.checkpoint.kv import user_rules
from console.deploy import deadman, runlog
from console.deploy.audit import Audited
from console.deploy.fix import ProfileEdit, edits_again, fix_for
from console.deploy.lock import Owner, held, holder
from console.deploy.question import redeploy_question
from console.deploy.ready import probe_serving
from console.deploy.release import already_serving, serves_again
from console.deploy.remedy import last_launch
from console.deploy.rollback import served_before
from console.deploy.run import Emitter, Walk, ending, keep_found
from console.deploy.script import Script
from console.deploy.scripted import scripted_steps
from console.deploy.step import Context
from console.deploy.store import Store
from console.deploy.transaction import NodeTransaction
from console.errors import RelaunchError
from console.events import Event, Noted, RunEnded, RunStarted
from console.node.base import Node
from console.node.facts import Facts, read_facts
from console.profile.model import Profile
from console.settings import config_folder
from console.text import Secret, duration

FIXES = 3
"""Remedies that one run applies by itself before it gives up."""

MENDED = frozenset({"patch", "unit", "launch"})
"""A script with one of these asks what the last launch of this node and profile was mended with."""
DOWNTIME = frozenset({"stop", "launch", "keep", "rollback"})
"""A script with one of these may go on with the downtime of an unfinished run."""

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
    """Apply known remedies: at once what the last launch of this node and profile was mended with or died without, and
    what a failure in this run asks for."""
    resume: bool = False
    """Take up the last launch with the remedies that it had applied."""
    rehearsal: bool = False
    confirm: Confirm = decline
    token: Secret = field(default_factory=lambda: Secret(""))
    evidence: Path | None = None
    """Folder that receives one folder per run with what was captured on failure."""
    lock_wait: float = 0.0
    """Seconds to wait for someone else's lock."""
    deep: bool = False
    """Hash every file of the model again, whatever is remembered of it."""
    facts: Awaitable[Facts] | None = None
    """The answer to `redeploy_question` of this profile, where it was asked already; for one run."""
    release: str = ""
    """Number of the release that the verb `rollback` goes to; empty for the one before."""


class Engine:
    """One node, one profile, and the run in hand."""

    def __init__(self, node: Node, profile: Profile, store: Store) -> None:
        self.node = node
        self.profile = profile
        self.store = store
        self.snapshot = state.Snapshot()
        self._subscribers: list[Callable[[Event], None]] = []
        self._armed: float | None = None
        """Seconds of the dead man's switch that the last run left armed."""

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
        written = self.profile
        self._armed = None
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
        code, text, remedy = ending(error, changed, dry_run=options.dry_run or self.node.read_only, armed=self._armed)
        end = RunEnded(
            time=time.time(),
            run=run,
            code=code,
            text=text + self._compared(run),
            remedy=remedy,
            seconds=time.monotonic() - clock,
            downtime=self.snapshot.downtime_seconds,
        )
        emit(end)
        self.profile = written  # a remedy is this run's own; the next one asks the history for it
        if isinstance(error, asyncio.CancelledError):
            raise error
        if error is not None and not isinstance(error, RelaunchError) and os.environ.get("RELAUNCH_DEBUG"):
            raise error
        return end

    async def _run(self, run: str, script: Script, options: RunOptions, emit: Emitter) -> tuple[str, ...]:
        ctx = await self._context(run, options, emit)
        if MENDED & set(script.names()):
            await self._mended_before(ctx, options)
        walk = Walk(
            ctx, scripted_steps(script, lambda: self.snapshot), serves_again, lambda ctx: bool(served_before(ctx))
        )
        walk.remedy = lambda ctx, error: self._remedy(ctx, apply=options.fix)
        # systemd calls a wedged server active; only an answer says that it serves
        serves = "launch" in script.names() and already_serving(ctx) and await probe_serving(ctx, facts=ctx.facts)
        if options.dry_run or self.node.read_only:
            return await walk.plan()
        if serves and holder(ctx.facts) is None and deadman.plan_of(ctx.facts) is None and await walk.satisfied():
            return ()  # who changes nothing needs no lock
        owner = Owner.here(run=run, verb=script.name, who=getpass.getuser(), where=socket.gethostname())
        async with held(self.node, ctx.facts, owner, wait=options.lock_wait, emit=emit) as lock:
            if lock.broke is not None or options.lock_wait:
                await ctx.refresh()  # somebody else may have changed everything since
            ctx.node = audited = Audited(self.node, ctx.facts, operator=f"{owner.who}@{owner.host}", run=run)
            ctx.found["lock_token"] = owner.token
            walk.transaction = NodeTransaction(self.node, audited, owner)
            if DOWNTIME & set(script.names()) and await deadman.adopt(ctx):
                ctx.found["adopted"] = True
            async with deadman.beating(ctx, self.node):
                try:
                    return await walk.walk()
                finally:
                    self._armed = ctx.profile.deadman_seconds if deadman.FOUND in ctx.found else None

    async def _context(self, run: str, options: RunOptions, emit: Emitter) -> Context:
        folder = None if options.evidence is None else options.evidence / run
        ctx = Context(
            node=self.node,
            profile=self.profile,
            facts=await (options.facts or self.facts()),
            emit=emit,
            confirm=options.confirm,
            refresh=self.facts,
            run=run,
            token=options.token,
            options={
                "kv_rules": user_rules(config_folder(os.environ)),
                **({"deep": True} if options.deep else {}),
                **({"evidence_dir": folder} if folder else {}),
                **({"release": options.release} if options.release else {}),
            },
        )

        async def refresh() -> Facts:
            ctx.facts = await self.facts()
            runlog.note_gpus(ctx, ctx.facts.gpus)
            return ctx.facts

        ctx.refresh = refresh
        runlog.note_run(ctx)
        if told := deadman.sentence(ctx.facts):
            emit(Noted(time=time.time(), text=told))
        return ctx

    async def _mended_before(self, ctx: Context, options: RunOptions) -> None:
        """Begin with the remedies of the last launch, where they were asked for; else say what the profile lacks."""
        last = last_launch(self.store, self.node.name, ctx.profile.name, before=ctx.run)
        if last is None:
            return
        edits = edits_again(ctx.profile, last.remedies(found=options.fix))
        if not options.fix and not options.resume:
            if edits and last.good:
                text = f"run {last.run} came up with a remedy that the profile lacks ({edits[0].text})"
                ctx.emit(Noted(time=time.time(), text=f"{text}; --fix takes it again, a line in the profile keeps it"))
            return
        for edit in edits:
            self._take(ctx, edit)
        if edits:
            await ctx.refresh()

    async def _remedy(self, ctx: Context, *, apply: bool) -> bool:
        """Tell the remedy that triage named, once per remedy; with `apply`, True when the profile was changed by it."""
        diagnosis = ctx.found.get("diagnosis")
        tried: set[str] = ctx.found.setdefault("fixes", set())
        if diagnosis is None:
            return False
        patched = bool(getattr(ctx.found.get("patch"), "rewritten", None))
        edit = fix_for(ctx.profile, diagnosis.fix, patched=patched)
        if edit is None or edit.name in tried:
            return False
        if not apply or len(tried) >= FIXES:
            ctx.emit(edit.event(time.time(), applied=False))
            return False
        self._take(ctx, edit)
        keep_found(ctx)
        await ctx.refresh()
        return True

    def _take(self, ctx: Context, edit: ProfileEdit) -> None:
        """Go on with the profile as `edit` has it."""
        ctx.found.setdefault("fixes", set()).add(edit.name)
        ctx.emit(edit.event(time.time(), applied=True))
        self.profile = ctx.profile = edit.profile

    def _compared(self, run: str) -> str:
        """The downtime of this run beside the last one, for its last sentence; empty when there was none."""
        spent = self.snapshot.downtime_seconds
        if spent is None:
            return ""
        before = self.store.last_downtime(self.node.name, self.profile.name, before=run)
        return f"; downtime {duration(spent)}" + ("" if before is None else f" (last time {duration(before)})")

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
