"""One walk through the steps: check, apply, verify; and what follows when one fails.

The walk never trusts what was written down: each step looks at the node, and after each applied step the facts are read
again. A lost link is not a failure: the walk waits for the node, reads the facts again and checks the step anew, so
that work that went on without us is adopted and never repeated. A failure during downtime follows the profile's
`on_failure`: `rollback` undoes the downtime steps in reverse order and proves that the old service serves again
(`Restored`, or `RollbackFailed`); `hold` leaves the node as it failed. Before downtime nothing that serves was touched,
so there is nothing to restore and the failure keeps its own exit code. A node that was started again meanwhile is walked
from the first step anew. What surrounds a walk on a real node (audit, evidence, dead man's switch) is its `Transaction`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from console.deploy.step import Change, Context, Needed, Satisfied, Step
from console.errors import (
    ExitCode,
    Interrupted,
    NotReady,
    RelaunchError,
    Restored,
    RollbackFailed,
    Unreachable,
)
from console.events import CauseFound, Changed, Event, Noted, StepChanged
from console.text import Secret, clean, duration, headline, redact

LINK_PATIENCE = 600.0
"""Seconds that a step may go on losing the link before the run gives up; the remote work goes on all the same."""


@dataclass(frozen=True, slots=True)
class Emitter:
    """Where events go: cleaned and redacted here, the one place, then handed to every sink in turn."""

    sinks: tuple[Callable[[Event], None], ...]
    secrets: tuple[Secret, ...] = ()

    def __call__(self, event: Event) -> None:
        values: dict[str, Any] = {f.name: self._safe(getattr(event, f.name)) for f in fields(event)}
        safe = replace(event, **values)
        for sink in self.sinks:
            sink(safe)

    def _safe(self, value: object) -> object:
        if isinstance(value, str):
            return redact(clean(value), self.secrets)
        if isinstance(value, tuple):
            return tuple(self._safe(item) for item in value)
        return value


Remedy = Callable[[Context, RelaunchError], Awaitable[bool]]

KEPT = ("stopped", "downtime_started", "unit-former", "lock_token", "goal", "adopted", "fixes", "deadman")
"""What of `Context.found` stays when the steps are walked again: what cannot be measured any more."""
WAY_BACK = "rollback"
"""What the way back after a failure is called, as the verb is."""
REBOOTS = 3
"""Restarts of the node that one run puts up with."""


class Transaction:
    """What surrounds a walk. This one does nothing."""

    def at(self, step: str) -> None:
        """`step` begins to change things."""

    async def capture(self, ctx: Context, step: str, error: RelaunchError) -> None:
        """Keep the evidence of a failure, before anything is cleaned up."""

    async def overtaken(self, ctx: Context) -> RelaunchError | None:
        """How the run ends when the node has gone back by itself while the console was away."""
        return None

    async def settle(self, ctx: Context) -> None:
        """The run is over and the node is as it shall be: nothing waits for this console any more."""

    async def rebooted(self, ctx: Context) -> None:
        """The node was started again."""


class _Overtaken(Exception):
    """The node has gone back by itself."""

    def __init__(self, end: RelaunchError) -> None:
        super().__init__(end.message)
        self.end = end


class _Rebooted(Exception):
    """The node was started again while a step was at work."""


async def _no_remedy(ctx: Context, error: RelaunchError) -> bool:
    return False


@dataclass(slots=True)
class Walk:
    """The state of one walk."""

    ctx: Context
    steps: Sequence[Step]
    serves_again: Callable[[Context], Awaitable[str]]
    """Proof, in words, that the old service serves after an undo; raises RelaunchError otherwise."""
    served: Callable[[Context], bool] = lambda ctx: True
    """Whether anything served before, so that there is a way back at all."""
    remedy: Remedy = _no_remedy
    """Asked after a failure: True when it changed `ctx.profile` so that another walk may succeed."""
    transaction: Transaction = field(default_factory=Transaction)
    boot: str | None = None
    """The boot of the node that the walk began in."""
    reboots: int = 0
    applied: list[Step] = field(default_factory=list)
    """Steps that may have to be undone, in the order in which they were applied."""
    told: set[str] = field(default_factory=set)
    """Steps whose cause a step told itself, with its place in the log."""

    def __post_init__(self) -> None:
        emit = self.ctx.emit

        def listen(event: Event) -> None:
            if isinstance(event, CauseFound):
                self.told.add(event.step)
            emit(event)

        self.ctx.emit = listen

    async def plan(self) -> tuple[str, ...]:
        """Check every step without changing anything; the names of the steps that would do something.

        A step whose check refuses is reported as failed and ends the plan with its error.
        """
        needed = []
        for step in self.steps:
            outcome = await self._check(step)
            if isinstance(outcome, Needed):
                needed.append(step.name)
                self._say(step, "needed", _in_short(outcome.changes))
        return tuple(needed)

    async def satisfied(self) -> bool:
        """Look at every step. True, and all of it told, when none has anything to do; else nothing was told and nothing
        decided: the walk looks again."""
        tell, held = self.ctx.emit, list[Event]()
        self.ctx.emit = held.append
        try:
            for step in self.steps:
                if isinstance(await self._check(step), Needed):
                    return False
        except RelaunchError:
            return False
        finally:
            self.ctx.emit = tell
        for event in held:
            tell(event)
        return True

    async def walk(self) -> tuple[str, ...]:
        """Bring every step about; the names of the steps that did something. Raises the error that ends the run."""
        changed: list[str] = []
        self.boot = self._boot()
        for index, step in enumerate(self.steps):
            try:
                if await self._bring_about(step):
                    changed.append(step.name)
            except _Rebooted:
                await self._begin_anew()
                return (*changed, *await self.walk())
            except _Overtaken as other:
                self._failed(step, other.end)
                self._skip(index)
                raise other.end from None
            except RelaunchError as error:
                if (end := await self._gone_back()) is not None:
                    self._failed(step, end)
                    self._skip(index)
                    raise end from error
                if self._boot() != self.boot:  # the failure is only what the restart looks like from this step
                    await self._begin_anew()
                    return (*changed, *await self.walk())
                self._failed(step, error)
                await self.transaction.capture(self.ctx, step.name, error)
                if await self.remedy(self.ctx, error):
                    return (*changed, *await self.walk())
                self._skip(index)
                raise await self._after_failure(error) from error
        await self.transaction.settle(self.ctx)
        return tuple(changed)

    def _skip(self, index: int) -> None:
        for later in self.steps[index + 1 :]:
            self._say(later, "skipped")

    async def _bring_about(self, step: Step) -> bool:
        """True when the step changed something. A lost link starts the step again from measured facts."""
        deadline = time.monotonic() + LINK_PATIENCE
        while True:
            try:
                return await self._once(step)
            except Unreachable as error:
                if time.monotonic() > deadline or type(error) is not Unreachable:
                    raise
                self.ctx.emit(Noted(time=time.time(), text=f"{error.message}; looking again at {step.name}"))
                await self._look_again(deadline)

    async def _look_again(self, deadline: float) -> None:
        """Read the facts over the next connection, which may go the same way."""
        while True:
            try:
                await self.ctx.refresh()
                break
            except Unreachable as error:
                if time.monotonic() > deadline or type(error) is not Unreachable:
                    raise
        if (end := await self.transaction.overtaken(self.ctx)) is not None:
            raise _Overtaken(end)
        if self._boot() != self.boot:
            raise _Rebooted

    async def _gone_back(self) -> RelaunchError | None:
        """How the run ends when a failure is only what the node's own way back looks like from here."""
        if "deadman" not in self.ctx.found:
            return None
        with contextlib.suppress(RelaunchError):
            await self.ctx.refresh()
            return await self.transaction.overtaken(self.ctx)
        return None

    def _boot(self) -> str | None:
        return getattr(self.ctx.facts, "boot_id", None)

    async def _begin_anew(self) -> None:
        """After a restart of the node: what this run knew of processes is void, what it must put back is not."""
        self.reboots += 1
        if self.reboots > REBOOTS:
            raise await self._after_failure(
                NotReady(f"{self.ctx.node.name} was started again {self.reboots} times", "look why it restarts")
            )
        self.ctx.emit(Noted(time=time.time(), text="the node was started again meanwhile; every step looks anew"))
        keep_found(self.ctx)
        await self.transaction.rebooted(self.ctx)

    async def _once(self, step: Step) -> bool:
        began = time.monotonic()
        outcome = await self._check(step)
        if isinstance(outcome, Satisfied):
            return False
        self.applied.append(step)
        self.transaction.at(step.name)
        self._say(step, "running", _in_short(outcome.changes))
        await step.apply(self.ctx)
        self._say(step, "verifying")
        evidence = await step.verify(self.ctx)
        self._say(step, "done", evidence, time.monotonic() - began)
        await self.ctx.refresh()
        return True

    async def _check(self, step: Step) -> Satisfied | Needed:
        began = time.monotonic()
        self._say(step, "checking")
        outcome = await step.check(self.ctx)
        if isinstance(outcome, Satisfied):
            self._say(step, "satisfied", outcome.evidence, time.monotonic() - began)
        else:
            for change in outcome.changes:
                self.ctx.emit(Changed(time=time.time(), step=step.name, text=change.text, diff=change.diff))
        return outcome

    async def _after_failure(self, error: RelaunchError) -> RelaunchError:
        """Follow `on_failure`; the error that the run ends with."""
        if isinstance(error, Restored | RollbackFailed):  # the step was a way back itself
            await self.transaction.settle(self.ctx)
            return error
        downtime = any(step.downtime for step in self.applied) or "adopted" in self.ctx.found
        if not downtime or self.ctx.profile.on_failure == "hold":
            await self.transaction.settle(self.ctx)
            return error
        self.transaction.at(WAY_BACK)
        if not self.served(self.ctx):
            await self._undo()
            await self.transaction.settle(self.ctx)
            return error
        began = time.monotonic()
        self._say_back("running", "going back to what served before")
        try:
            await self._undo()
            evidence = await self.serves_again(self.ctx)
        except RelaunchError as second:
            self._say_back("failed", headline(second.message) or type(second).__name__, time.monotonic() - began)
            if not isinstance(second, Unreachable) and not isinstance(second.__cause__, Unreachable):
                await self.transaction.settle(self.ctx)  # else the node's own switch is the one way back that is left
            both = f"{headline(error.message)}; and the way back failed too: {headline(second.message)}"
            return RollbackFailed(both, second.remedy or error.remedy)
        self._say_back("done", evidence, time.monotonic() - began)
        await self.transaction.settle(self.ctx)
        return Restored(f"{headline(error.message)}; {evidence}", error.remedy)

    async def _undo(self) -> None:
        """Undo what was applied, newest first, back to and including the unit text; downloads and patches stay.

        The unit text goes back before the old service starts again, since it may be the text of that very service. A run
        that took over the downtime of another undoes that one's steps too.
        """
        keep = {"engine", "space", "download", "shards", "patch"}
        found = self.ctx.found
        applied = [
            step
            for step in self.steps
            if step in self.applied
            or ("adopted" in found and step.downtime)
            or (step.name == "unit" and "unit-former" in found)
        ]
        steps = [step for step in reversed(applied) if step.name not in keep]
        for step in sorted(steps, key=lambda step: step.name == "stop"):
            await step.undo(self.ctx)
            await self.ctx.refresh()

    def _failed(self, step: Step, error: RelaunchError) -> None:
        self._say(step, "failed", headline(error.message) or type(error).__name__)
        if step.name not in self.told:
            self.ctx.emit(CauseFound(time=time.time(), step=step.name, text=error.message, remedy=error.remedy))

    def _say(self, step: Step, state: str, detail: str = "", seconds: float | None = None) -> None:
        self._say_of(step.name, state, detail, seconds)

    def _say_back(self, state: str, detail: str, seconds: float | None = None) -> None:
        """The way back is a line of the run like a step, though no script names it."""
        self._say_of(WAY_BACK, state, detail, seconds)

    def _say_of(self, name: str, state: str, detail: str, seconds: float | None) -> None:
        self.ctx.emit(
            StepChanged(time=time.time(), step=name, state=state, detail=detail, seconds=seconds)  # type: ignore[arg-type]
        )


def keep_found(ctx: Context) -> None:
    """Forget what was found, all but what the steps cannot measure again."""
    ctx.found = {name: ctx.found[name] for name in KEPT if name in ctx.found}


def _in_short(changes: tuple[Change, ...]) -> str:
    first = headline(changes[0].text, 120) if changes else "to be done"
    return first if len(changes) < 2 else f"{first} (and {len(changes) - 1} more)"


def ending(
    error: BaseException | None, changed: tuple[str, ...], *, dry_run: bool, armed: float | None = None
) -> tuple[ExitCode, str, str]:
    """Exit code, one sentence and remedy for the end of a run. `armed`: seconds after which the node goes back itself."""
    match error:
        case None if dry_run:
            return ExitCode.DONE, _plan_sentence(changed), ""
        case None if not changed:
            return ExitCode.DONE, "already so: every step was satisfied and nothing was changed", ""
        case None:
            return ExitCode.DONE, f"done: {', '.join(changed)}", ""
        case RelaunchError():
            return error.code, error.message, error.remedy
        case asyncio.CancelledError() | KeyboardInterrupt():
            text = "interrupted; what runs on the node goes on"
            if armed is not None:
                text += f"; without a console within {duration(armed)} it goes back to what served before"
            stopped = Interrupted(text, "come back with: relaunch resume")
            return stopped.code, stopped.message, stopped.remedy
        case _:
            return (
                ExitCode.UNEXPECTED,
                f"unexpected: {type(error).__name__}: {error}",
                "this is a defect of Relaunch; `relaunch show` has the events up to here",
            )


def _plan_sentence(changed: tuple[str, ...]) -> str:
    if not changed:
        return "nothing to do: every step is satisfied"
    return f"nothing has been changed; needed: {', '.join(changed)}"
