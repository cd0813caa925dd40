"""A node watched and worked on, for a screen: connection, GPUs, log and run, each known as of some moment.

A screen holds one `Live`, reads `glance()` on a timer and never waits for it; nothing in a glance changes after it was
made. The tasks here outlive any widget: they end with `close()`, and what runs on the node goes on. A part that fails
says so in the glance and is tried again; the others go on. Every screen imports the words of a glance from here, before its
first frame: what reads a node is imported when one is read.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from console.deploy.store import Store
from console.errors import CommandFailed, RelaunchError, Unreachable
from console.events import RunEnded
from console.logs.spool import Spool
from console.node.base import LinkState, Node
from console.seen import seen_of
from console.state import Snapshot
from console.text import clean

if TYPE_CHECKING:
    from console.deploy.lock import Owner
    from console.deploy.release import Release
    from console.deploy.script import Script
    from console.engine import Engine, RunOptions
    from console.node.facts import Facts
    from console.node.gpudata import GpuSample
    from console.profile.model import Profile
    from console.triage import Diagnosis, Rules

HISTORY = 120
"""GPU samples kept for sparklines."""
RETRY_SECONDS = 2.0
FACTS_SECONDS = 60.0
CLOSE_SECONDS = 4.0
"""Longest wait for a task to end when the console is left: a link that hangs must not hold the terminal."""
BACKLOG = 5000
"""Lines of the journal that are fetched when a log is opened for the first time."""

SERVING_STEPS = frozenset({"stop", "launch", "keep", "rollback"})
"""Steps after which something else serves, or is the last good release."""

Opener: TypeAlias = Callable[[], AbstractAsyncContextManager[tuple[Node, "Profile"]]]
"""Opens the node, with the profile as it is there: a practice node's own hub is known only once it runs."""


@dataclass(frozen=True, slots=True)
class GpuView:
    """GPUs as of `sample.time` on the node; `seen` is when it arrived here, in this machine's monotonic seconds."""

    sample: GpuSample | None = None
    seen: float | None = None
    used: tuple[tuple[int | None, ...], ...] = ()
    """Bytes used per GPU, oldest sample first, `HISTORY` at most."""
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class LogView:
    """The spool of the unit's log. `version` moves with every batch; `diagnosis` is triage's word on the last launch."""

    unit: str = ""
    version: int = 0
    lines: int = 0
    following: bool = False
    trouble: str = ""
    seen: float | None = None
    diagnosis: Diagnosis | None = None


CONNECTING = LinkState(False, reason="connecting")
"""The link before its first login: neither up nor lost."""


@dataclass(frozen=True, slots=True)
class Glance:
    """Everything a screen may show, as known now. None is unknown."""

    version: int = 0
    node: str = ""
    profile: Profile | None = None
    rehearsal: bool = False
    link: LinkState = CONNECTING
    facts: Facts | None = None
    facts_seen: float | None = None
    good: Release | None = None
    lock: Owner | None = None
    gpus: GpuView = field(default_factory=GpuView)
    log: LogView = field(default_factory=LogView)
    run: Snapshot = field(default_factory=Snapshot)
    running: bool = False
    expected: tuple[tuple[str, float], ...] = ()
    """Seconds that each step took last time, by step name."""


class Live:
    """The tasks behind a screen. Use as an async context manager, in the loop that the screen runs in."""

    def __init__(
        self,
        opener: Opener,
        profile: Profile,
        store: Store,
        rules: Rules,
        *,
        spool: Path,
        rehearsal: bool = False,
        name: str = "",
    ) -> None:
        from console.triage import Reader

        self._opener = opener
        self.store = store
        self._rules = rules
        # The journal is read again from its last lines, so an older spool would show them twice. A console that has the
        # old file open keeps it: the name goes, the file stays.
        spool.unlink(missing_ok=True)
        self.spool = Spool(spool)
        self._profile = profile
        self._glance = Glance(node=name, profile=profile, rehearsal=rehearsal)
        self._reader = Reader(rules)
        self._node: Node | None = None
        self._engine: Engine | None = None
        self._run: asyncio.Task[RunEnded] | None = None
        self._watch: asyncio.Task[None] | None = None
        self._used: deque[tuple[int | None, ...]] = deque(maxlen=HISTORY)
        self._cursor: str | None = None
        self._log_seen: float | None = None
        self._stir = asyncio.Event()
        """Set when the facts are to be read again before their time."""
        self._walked: tuple[str, ...] = ()
        """The steps of the run that have changed what serves, as of the last look at the run."""

    async def __aenter__(self) -> Live:
        self._watch = asyncio.ensure_future(self._keep())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End every task here. Work on the node goes on."""
        # The run first: it gives its lock back over the connection that the watch holds.
        for task, patience in ((self._run, CLOSE_SECONDS), (self._watch, CLOSE_SECONDS)):
            if task is not None and not task.done():
                task.cancel()
                await asyncio.wait((task,), timeout=patience)
        self.spool.close()

    def glance(self) -> Glance:
        """What is known now. Never blocks."""
        link = self._node.link() if self._node is not None else self._glance.link
        snapshot = self._engine.snapshot if self._engine is not None else self._glance.run
        running = self._run is not None and not self._run.done()
        now = {"link": link, "run": snapshot, "running": running, "log": self._log_now()}
        if any(getattr(self._glance, name) != value for name, value in now.items()):
            self._set(**now)
            self._note_walked(snapshot)
        return self._glance

    def _note_walked(self, run: Snapshot) -> None:
        """A step that changes what serves is over: what is known of the node is no longer so."""
        walked = tuple(
            step.name for step in run.steps if step.name in SERVING_STEPS and step.state in ("done", "failed")
        )
        if walked != self._walked:
            self._walked = walked
            self._stir.set()

    @property
    def connected(self) -> bool:
        return self._engine is not None

    def start(self, script: Script, options: RunOptions) -> None:
        """Begin a run; raises RelaunchError while one runs or before the node is reached."""
        if self._run is not None and not self._run.done():
            raise RelaunchError(
                f"run {self._glance.run.run} is still going", "wait for its end, or press i to interrupt it"
            )
        if self._engine is None:
            raise Unreachable(f"{self._glance.node or 'the node'} is not reached yet", "the link line says why")
        self._run = asyncio.ensure_future(self._engine.run(script, options))
        self._run.add_done_callback(lambda _: self._stir.set())

    async def interrupt(self) -> None:
        """Stop walking; what runs on the node goes on."""
        if self._run is not None:
            self._run.cancel()
            await asyncio.gather(self._run, return_exceptions=True)

    async def look(self) -> None:
        """Read the node's facts again."""
        if self._engine is not None:
            from console.deploy.lock import holder
            from console.deploy.release import last_good

            going = self._run is not None and not self._run.done()
            facts = await self._engine.facts()
            lock = holder(facts)
            if going and lock is not None and (lock.pid, lock.run) == (os.getpid(), self._engine.snapshot.run):
                lock = None  # that of the run in hand, which may be over by the time it is shown
            self._set(facts=facts, facts_seen=time.monotonic(), good=last_good(facts), lock=lock)
            self.store.note_seen(
                self._glance.node, seen_of(self._glance, time.time()), rehearsal=self._glance.rehearsal
            )

    async def unlock(self, owner: Owner) -> bool:
        """Remove the lock of `owner`; False when it had changed hands. Raises RelaunchError."""
        if self._engine is None or self._node is None:
            raise Unreachable(f"{self._glance.node or 'the node'} is not reached", "the link line says why")
        from console.deploy.lock import break_lock

        gone = await break_lock(self._node, await self._engine.facts(), owner)
        await self.look()
        return gone

    async def _keep(self) -> None:
        """Connect, watch, and begin again when either ends."""
        # The first frame does not wait for all that runs on nodes to be imported, and keys do not either.
        await asyncio.to_thread(import_module, "console.engine")
        while True:
            try:
                async with self._opener() as (node, self._profile):
                    await self._watch_node(node)
            except (RelaunchError, OSError) as error:
                self._set(link=LinkState(False, reason=clean(str(error))))
            except ExceptionGroup as error:
                # a defect in one of the parts: said, and begun again, so that the screens do not go quiet
                self._set(link=LinkState(False, reason=clean(f"unexpected: {error.exceptions[0]!r}")))
            finally:
                self._leave_node()
            # Connecting failed as a whole (name, key, login): nothing tells when that is mended, so it is tried again.
            await asyncio.sleep(RETRY_SECONDS)

    def _leave_node(self) -> None:
        """Keep what the run had reached: the glance is made of the engine only while there is one."""
        if self._engine is not None:
            self._set(run=self._engine.snapshot)
        if self._node is not None:
            self._set(link=LinkState(False, reason=self._node.link().reason or "the connection was closed"))
        self._node = self._engine = None

    async def _watch_node(self, node: Node) -> None:
        self._node = node
        from console.engine import Engine

        self._engine = Engine(node, self._profile, self.store)
        expected = tuple(self.store.durations(node.name, self._profile.name).items())
        self._set(node=node.name, profile=self._profile, link=node.link(), expected=expected)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._again(self._facts, node))
            tasks.create_task(self._again(self._gpus, node))
            tasks.create_task(self._again(self._log, node))

    async def _again(self, part: Callable[[Node], Awaitable[None]], node: Node) -> None:
        """Run a part for ever; its trouble is shown, and it begins again."""
        while True:
            try:
                await part(node)
            except RelaunchError as error:
                self._trouble(part.__name__, clean(error.message))
            await asyncio.sleep(RETRY_SECONDS)  # a part that fails at once must not spin; nothing signals its mending

    def _trouble(self, part: str, text: str) -> None:
        if part == "_gpus":
            self._set(gpus=replace(self._glance.gpus, trouble=text))
        elif part == "_log":
            self._set(log=replace(self._glance.log, trouble=text, following=False))

    async def _facts(self, node: Node) -> None:
        self._stir.clear()
        await self.look()
        self._set(expected=tuple(self.store.durations(node.name, self._profile.name).items()))
        # What stands on the node changes through us, then the end of the run stirs this, or rarely.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stir.wait(), FACTS_SECONDS)

    async def _gpus(self, node: Node) -> None:
        from console.node.gpu import watch_gpus

        async with watch_gpus(node) as samples:
            async for sample in samples:
                self._used.append(tuple(gpu.memory_used for gpu in sample.gpus))
                self._set(gpus=GpuView(sample, time.monotonic(), tuple(self._used)))

    async def _log(self, node: Node) -> None:
        from console.node import journal
        from console.triage import Reader

        unit = self._profile.service.unit
        if self._cursor is None:
            opened = journal.read(node, unit, lines=BACKLOG, follow=True)
        else:
            self.spool.gap("the link was away here; what came meanwhile follows", now=time.time())
            opened = journal.follow(node, unit, cursor=self._cursor)
        try:
            async with opened as entries:
                self._set(log=replace(self._glance.log, unit=unit, following=True, trouble=""))
                async for entry in entries:
                    self.spool.append_lines(as_shown(entry.message), now=entry.time)
                    self._reader.feed_line(entry.message)
                    self._cursor = entry.cursor
                    self._log_seen = time.monotonic()
        except CommandFailed:
            if self._cursor is not None:  # the journal has forgotten the place: begin anew from its last lines
                self._cursor = None
                self._reader = Reader(self._rules)
                self.spool.gap("the journal begins anew here; lines may be missing or stand twice", now=time.time())
            raise

    def _log_now(self) -> LogView:
        """The log's part of the glance; triage is asked here, at the screen's pace and not at the log's."""
        log = self._glance.log
        if log.version == self.spool.version:
            return log
        return replace(
            log,
            version=self.spool.version,
            lines=len(self.spool),
            seen=self._log_seen,
            diagnosis=self._reader.diagnosis(),
        )

    def _set(self, **changes: object) -> None:
        self._glance = replace(self._glance, version=self._glance.version + 1, **changes)  # type: ignore[arg-type]


def as_shown(message: str) -> list[str]:
    """The lines of a journal entry as a terminal would leave them: after a CR the rest overwrites what stood before it,
    but for the prefix that names the process, which vLLM up to 0.2x writes once in front of a progress bar."""
    from console.triage.prefix import parse

    lines = []
    for line in message.split("\n"):
        parts = line.rstrip("\r").split("\r")
        prefix = parts[0] if len(parts) > 1 and not parse(parts[0]).text.strip() else ""
        lines.append(prefix + next((part for part in reversed(parts[1:]) if part), "" if prefix else parts[0]))
    return lines


def spool_path(node: str, unit: str) -> Path:
    """Where a unit's log is spooled: $XDG_CACHE_HOME/relaunch/logs, one file per node and unit."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "relaunch" / "logs"
    base.mkdir(parents=True, exist_ok=True, mode=0o700)
    safe = "".join(char if char.isalnum() or char in "-_." else "_" for char in f"{node}-{unit}")
    return base / f"{safe}.log"
