"""A unit started and followed until it is ready, or until it is known why it will not be.

Three sources at once, all of them events: the journal of exactly this invocation, which feeds triage; the unit's state as
systemd has it; and GPU samples, which prove movement where the log is silent (journald keeps a progress bar that ends in
CR until its line is complete). Beside them /health is asked now and then, since the line that says "ready" may never come:
journald drops lines of a chatty service, and uvicorn's log level may leave it out. The end is one of: ready; never started;
no log; crashed; restarted by systemd, which must not hide a crash loop; hung in a stage. Each wait ends on the next event
or on the stage's stall limit.

A `Starting` is kept in `ctx.found["launch"]`, so that after a lost link the follow goes on at its cursor.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from console import triage
from console.deploy import probe
from console.deploy.cause import cause_event
from console.deploy.runlog import note_gpus
from console.deploy.starting import Ended, Starting
from console.errors import RelaunchError, Unreachable
from console.events import Progressed, StageReached
from console.node import journal, systemd
from console.node.base import Done, done
from console.node.facts import UnitState
from console.node.gpu import GpuSample, watch_gpus
from console.node.journal import Entry
from console.text import gib, plural
from console.triage.entries import READY, STAGES

if TYPE_CHECKING:
    from console.deploy.step import Context

FIRST_SIGN = 30.0
"""Seconds for systemd to begin a start job; nothing but a condition or a dependency keeps it longer."""
FIRST_LINE = 300.0
"""Seconds for a living process to write its first line; importing vLLM from a cold network disk takes minutes."""
TELL_AFTER = 0.3
"""Seconds that a failure in the log must stand, with no stage or shard after it, before it is told while the process lives."""
GRACE = 30.0
"""Seconds that a process may live on after its log has told why it fails."""
SETTLE = 3.0
QUIET = 0.4
"""After a death: the rest of the journal is read for at most SETTLE seconds, and until QUIET seconds brought nothing."""
HEALTH_SOON, HEALTH_SELDOM = 2.0, 15.0
"""Seconds between two looks at /health: once the engine has said that it is up, and before."""
MEMORY_STEP = 64 << 20
"""Bytes by which a GPU's memory must differ to count as movement."""
PROGRESS_EVERY = 0.5
SEEN = 20_000
"""Different lines remembered per stage, to tell a new line from one that is said again and again."""


_STAMP = re.compile(r"\d\d:\d\d:\d\d(?:[.,]\d+)?")

T = TypeVar("T")


def starting_of(ctx: Context, unit: str) -> Starting:
    """A new follow of `unit`, with the profile's stall limits."""
    rules = triage.load_rules().with_stalls(ctx.profile.ready.stalls)
    return Starting(unit=unit, rules=rules, reader=triage.Reader(rules))


# ---------------------------------------------------------------------------------------------------------- the start


async def begin(ctx: Context, unit: str) -> Starting:
    """Start `unit` without waiting for it, and remember the place in the journal where its log begins.

    Raises `Ended` (never-started) when systemd refuses the job, and Unreachable when the link is lost: then whether it
    was started is unknown, and `adopt` finds out.
    """
    starting = starting_of(ctx, unit)
    before = await systemd.unit_state(ctx.node, unit)
    starting.former, starting.state = before.invocation, before
    starting.cursor = await journal.last_cursor(ctx.node)
    reset = systemd.reset_failed(unit)
    done(
        await ctx.node.run(reset, timeout=30, sudo=True), reset
    )  # refused for a unit that is not loaded yet; no matter
    start = ("systemctl", "start", "--no-block", systemd.unit_name(unit))
    starting.began = starting.moved = time.monotonic()
    answer: Done = done(await ctx.node.run(start, timeout=60, sudo=True), start)
    if answer.code != 0:
        starting.systemd_said.append(" ".join(answer.err.split()) or f"systemctl start ended with code {answer.code}")
        raise Ended("never-started", starting)
    return starting


def adopt(ctx: Context, state: UnitState) -> Starting:
    """Follow a start that is already under way: from where this run left it, or from its first line."""
    known = ctx.found.get("launch")
    if isinstance(known, Starting) and known.unit == state.name and known.invocation in ("", state.invocation):
        starting = known
    else:
        starting = starting_of(ctx, state.name)
    starting.invocation, starting.restarts, starting.state = state.invocation, state.restarts, state
    starting.moved = time.monotonic()
    return starting


# --------------------------------------------------------------------------------------------------------- the follow


@dataclass(frozen=True, slots=True)
class _Over:
    """A source ended; `error` says why, None when it just ended."""

    source: str
    error: RelaunchError | None


@dataclass(frozen=True, slots=True)
class _Answers:
    """/health answered 200."""


_Item: TypeAlias = Entry | UnitState | GpuSample | _Answers | _Over


async def follow(ctx: Context, starting: Starting, *, step: str, port: int | None = None) -> None:
    """Return when the server says that it is ready, or answers on `port`; raises `Ended` otherwise, and Unreachable when
    the link is lost."""
    queue: asyncio.Queue[_Item] = asyncio.Queue(maxsize=20_000)
    pumps = [
        _pump("journal", _journal(ctx, starting), queue),
        _pump("unit", systemd.watch_unit(ctx.node, starting.unit), queue),
    ]
    if ctx.facts.gpus is not None:
        pumps.append(_pump("gpus", watch_gpus(ctx.node, 2.0), queue))
    if port is not None:
        pumps.append(_pump("health", _health(ctx, starting, port), queue))
    await _beside(pumps, lambda: _Follow(ctx, starting, step, queue).until_ready())


def _journal(ctx: Context, starting: Starting) -> AbstractAsyncContextManager[AsyncIterator[Entry]]:
    bound = starting.invocation or None
    return journal.follow(ctx.node, starting.unit, invocation=bound, cursor=starting.cursor)


@asynccontextmanager
async def _health(ctx: Context, starting: Starting, port: int) -> AsyncIterator[AsyncIterator[_Answers]]:
    """Once, when /health answers. HTTP tells nobody when it comes."""
    http = ctx.node.http(port)

    async def answers() -> AsyncIterator[_Answers]:
        looked = time.monotonic()
        while True:
            await asyncio.sleep(min(HEALTH_SOON, HEALTH_SELDOM))
            if not starting.nearly and time.monotonic() - looked < HEALTH_SELDOM:
                continue
            looked = time.monotonic()
            if await probe.health(http) == 200:
                yield _Answers()
                return

    yield answers()


async def _pump(
    name: str, source: AbstractAsyncContextManager[AsyncIterator[_Item]], queue: asyncio.Queue[_Item]
) -> None:
    error: RelaunchError | None = None
    try:
        async with source as items:
            async for item in items:
                await queue.put(item)
    except RelaunchError as caught:
        error = caught
    await queue.put(_Over(name, error))


async def _beside(pumps: Sequence[Awaitable[None]], body: Callable[[], Awaitable[T]]) -> T:
    """`body` with the pumps running beside it; they end with it. Its own error comes out as it is, in no group."""
    outcome: T | None = None
    error: RelaunchError | None = None
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_awaited(pump)) for pump in pumps]
        try:
            outcome = await body()
        except RelaunchError as caught:
            error = caught
        finally:
            for task in tasks:
                task.cancel()
    if error is not None:
        raise error
    return outcome  # type: ignore[return-value]  # set whenever there was no error


async def _awaited(thing: Awaitable[None]) -> None:
    await thing


@dataclass(slots=True)
class _Follow:
    ctx: Context
    starting: Starting
    step: str
    queue: asyncio.Queue[_Item]

    async def until_ready(self) -> None:
        while not self.starting.ready:
            item = await self._next(self._deadline())
            if item is None:
                self._out_of_time()
                continue
            dead = self._take(item)
            for _ in range(2_000):  # what came meanwhile is one batch: triage is asked once
                if self.queue.empty():
                    break
                dead = self._take(self.queue.get_nowait()) or dead
            self._look_at_log()
            self._tell_in_time()
            if dead and not self.starting.ready:
                await self._settle()
                self._tell_in_time(dead=True)  # what the node still has to be asked takes longer than this
                raise Ended(dead, self.starting)

    async def _next(self, deadline: float) -> _Item | None:
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                return await self.queue.get()
        except TimeoutError:
            return None

    # ------------------------------------------------------------------------------------------------- time limits

    def _deadline(self) -> float:
        starting = self.starting
        if starting.failing is not None:
            return starting.failing_since + (TELL_AFTER if starting.told_cause is None else GRACE)
        return starting.moved + self._limit()

    def _limit(self) -> float:
        starting = self.starting
        if not starting.invocation:
            return FIRST_SIGN
        if not starting.wrote:
            return float(starting.rules.stalls.get(STAGES[0], FIRST_LINE))
        return starting.rules.stall_seconds(starting.stage)

    def _out_of_time(self) -> None:
        starting = self.starting
        if time.monotonic() < self._deadline():
            return  # something moved between the timeout and now
        if starting.failing is not None and starting.told_cause is None:
            self._tell_failure()
            starting.told_cause = starting.told_cause or ""
            return
        silent = time.monotonic() - starting.moved
        if starting.failing is not None:
            raise Ended("failed", starting, silent)
        if not starting.invocation:
            raise Ended("never-started", starting, silent)
        raise Ended("hung" if starting.wrote else "no-log", starting, silent)

    # ------------------------------------------------------------------------------------------------------ events

    def _take(self, item: _Item) -> str | None:
        """Take one event in; how the start has ended when this event says so."""
        match item:
            case Entry():
                self._entry(item)
            case UnitState():
                return self._unit(item)
            case GpuSample():
                self._gpus(item)
            case _Answers():
                self._answered()
            case _Over(source="gpus" | "health"):
                pass  # telemetry and HTTP may fail; log and unit state decide
            case _Over(source=source, error=error):
                raise error or Unreachable(f"the {source} of {self.starting.unit} on {self.ctx.node.name} ended")
        return None

    def _entry(self, entry: Entry) -> None:
        starting = self.starting
        if entry.invocation and starting.invocation and entry.invocation != starting.invocation:
            return  # of an earlier start, or of the one after a crash; the unit's state tells that
        if not starting.take(entry):
            return
        # a line that has been said before in this stage ("No available shared memory broadcast block found in 60
        # seconds") moves nothing; progress and stages count by themselves
        shape = _STAMP.sub("", entry.message)[-200:]
        if shape not in starting.seen:
            if len(starting.seen) >= SEEN:
                starting.seen.clear()
            starting.seen.add(shape)
            starting.moved = time.monotonic()

    def _unit(self, state: UnitState) -> str | None:
        starting = self.starting
        starting.state = state
        if not starting.invocation:
            if state.invocation and state.invocation != starting.former:
                starting.invocation, starting.restarts = state.invocation, state.restarts
                starting.moved = time.monotonic()
            elif state.active == "failed":
                return "never-started"
            else:
                return None
        if state.restarts > starting.restarts or state.sub == "auto-restart":
            return "restarted"
        if state.invocation not in ("", starting.invocation):
            return "restarted"
        if state.active in ("failed", "inactive"):
            return "crashed"
        return None

    def _answered(self) -> None:
        """The server answers. That is it, unless its log tells a failure: then somebody else has the port."""
        starting = self.starting
        if starting.ready or starting.failing is not None or not starting.invocation:
            return
        starting.answers = True
        text = "ready: /health answers, though its log has not said so"
        self.ctx.emit(StageReached(time=time.time(), stage=STAGES[READY], text=text))

    def _gpus(self, sample: GpuSample) -> None:
        starting = self.starting
        starting.gpus = sample
        note_gpus(self.ctx, sample)
        used = {gpu.index: gpu.memory_used for gpu in sample.gpus if gpu.memory_used is not None}
        if any(abs(mib - starting.memory.get(index, 0)) >= MEMORY_STEP for index, mib in used.items()):
            if starting.memory:
                starting.moved = time.monotonic()
                self._tell_memory(used)
            starting.memory = used

    # ------------------------------------------------------------------------------------------------------ telling

    def _look_at_log(self) -> None:
        starting = self.starting
        before = (starting.stage, starting.progress)
        if starting.reader.stage != starting.stage:
            starting.stage = starting.reader.stage
            starting.moved = time.monotonic()
            starting.seen.clear()
            if starting.stage is not None:
                known = starting.rules.stage(starting.stage)
                text = known.title if known else ""
                self.ctx.emit(StageReached(time=time.time(), stage=starting.stage, text=text))
        self._tell_progress()
        if not starting.wrote or starting.ready:
            return
        if not starting.reader.failed:
            starting.failing = None
        elif starting.failing is None:
            found = starting.diagnosis()
            if found.outcome == "failed" and found.cause is not None and found.cause.line != starting.forgiven:
                starting.failing, starting.failing_since = found, time.monotonic()
        elif before != (starting.stage, starting.progress) and starting.failing.cause is not None:
            starting.forgiven, starting.failing = starting.failing.cause.line, None

    def _tell_in_time(self, *, dead: bool = False) -> None:
        """Tell a failure that has stood long enough, however much is still being written; of a dead process at once."""
        starting = self.starting
        if starting.failing is None or starting.told_cause is not None:
            return
        if dead or time.monotonic() - starting.failing_since >= TELL_AFTER:
            self._tell_failure()
            starting.told_cause = starting.told_cause or ""

    def _tell_failure(self) -> None:
        """The first cause, while the process is still dying: vLLM takes seconds to end after its first worker has."""
        starting = self.starting
        starting.failing = starting.diagnosis()
        if starting.failing.cause is None:
            return
        event = cause_event(starting.failing, self.step)
        starting.told_cause = event.text
        self.ctx.emit(event)

    def _tell_progress(self) -> None:
        starting = self.starting
        now = starting.reader.progress
        if now is None or now == starting.progress:
            return
        clock = time.monotonic()
        starting.progress, starting.moved = now, clock
        if starting.shards_from is None or now.done < starting.shards_from[1]:
            starting.shards_from = (clock, now.done)
        if clock - starting.told < PROGRESS_EVERY and now.done < now.total:
            return
        starting.told = clock
        since, first = starting.shards_from
        rate = (now.done - first) / (clock - since) if clock > since and now.done > first else None
        ranks = f", {now.ranks_done}/{now.ranks} ranks done" if now.ranks else ""
        self.ctx.emit(
            Progressed(
                time=time.time(),
                step=self.step,
                text=f"weights {now.done}/{now.total} shards{ranks}",
                done=now.done,
                total=now.total,
                unit="shards",
                rate=rate,
                eta=(now.total - now.done) / rate if rate else None,
            )
        )

    def _tell_memory(self, used: Mapping[int, int]) -> None:
        """Memory as the only sign of progress: while the log is silent."""
        starting = self.starting
        clock = time.monotonic()
        if starting.progress is not None and starting.progress.done < starting.progress.total:
            return
        if clock - starting.told < 4 * PROGRESS_EVERY:
            return
        starting.told = clock
        low, high = min(used.values()), max(used.values())
        span = gib(low) if gib(low) == gib(high) else f"{gib(low)} to {gib(high)}"
        text = f"{span} used on each of {plural(len(used), 'GPU')}"
        self.ctx.emit(Progressed(time=time.time(), step=self.step, text=text, done=float(low), unit="bytes"))

    async def _settle(self) -> None:
        """Read what the journal still holds of a process that is gone: the line that matters may be the last one."""
        limit = time.monotonic() + SETTLE
        while (item := await self._next(min(limit, time.monotonic() + QUIET))) is not None:
            if isinstance(item, Entry):
                self._entry(item)
            elif isinstance(item, UnitState):
                self.starting.state = item
            elif isinstance(item, _Over) and item.source == "journal":
                break
        self._look_at_log()
