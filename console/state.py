"""A pure fold of events into an immutable, versioned snapshot: what every front end shows.

`apply(snapshot, event)` never looks at a clock or a node. A field is None while unknown. Two folds of the same events
are equal, so that a replay of a stored run shows exactly what was shown then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from console.events import (
    CauseFound,
    Changed,
    Compared,
    Downtime,
    Event,
    Found,
    Measured,
    Noted,
    Progressed,
    Remedy,
    RunEnded,
    RunStarted,
    StageReached,
    StepChanged,
    StepState,
)

FINISHED: frozenset[StepState] = frozenset({"satisfied", "done", "failed", "skipped"})


@dataclass(frozen=True, slots=True)
class StepView:
    """One line of the checklist. `seconds` is set once the step is finished; `started` is UNIX time."""

    name: str
    state: StepState = "pending"
    detail: str = ""
    started: float | None = None
    seconds: float | None = None
    progress: Progressed | None = None
    changes: tuple[Changed, ...] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is known of one run. `version` grows by one with every event applied."""

    version: int = 0
    time: float = 0.0
    run: str = ""
    verb: str = ""
    node: str = ""
    profile: str = ""
    rehearsal: bool = False
    read_only: bool = False
    started: float | None = None
    steps: tuple[StepView, ...] = ()
    findings: tuple[Found, ...] = ()
    stage: str = ""
    downtime_since: float | None = None
    downtime_seconds: float | None = None
    cause: CauseFound | None = None
    remedies: tuple[Remedy, ...] = ()
    """Those that were applied, in order, and the one that was found last and was not."""
    measured: tuple[Measured, ...] = ()
    compared: tuple[Compared, ...] = ()
    """Forecasts beside what the started server's log said; each figure once, the newest."""
    notes: tuple[str, ...] = ()
    ended: RunEnded | None = None

    def step(self, name: str) -> StepView | None:
        """The step called `name`, or None when this run has no such step."""
        return next((step for step in self.steps if step.name == name), None)

    @property
    def proposed(self) -> Remedy | None:
        """The remedy that this run found and did not apply; None when there is none."""
        return next((remedy for remedy in self.remedies if not remedy.applied), None)


def apply(snapshot: Snapshot, event: Event) -> Snapshot:
    """The snapshot after `event`."""
    new = _fold(snapshot, event)
    return replace(new, version=snapshot.version + 1, time=event.time)


def fold(events: Iterable[Event]) -> Snapshot:
    """The snapshot after all `events`, from nothing."""
    snapshot = Snapshot()
    for event in events:
        snapshot = apply(snapshot, event)
    return snapshot


def _fold(now: Snapshot, event: Event) -> Snapshot:
    match event:
        case RunStarted():
            return Snapshot(
                version=now.version,
                run=event.run,
                verb=event.verb,
                node=event.node,
                profile=event.profile,
                rehearsal=event.rehearsal,
                read_only=event.read_only,
                started=event.time,
                steps=tuple(StepView(name) for name in event.steps),
            )
        case StepChanged():
            return _with_step(now, event.step, lambda step: _moved(step, event))
        case Progressed():
            return _with_step(now, event.step, lambda step: replace(step, progress=event))
        case Changed():
            return _with_step(now, event.step, lambda step: replace(step, changes=(*step.changes, event)))
        case Found():
            return replace(now, findings=(*now.findings, event))
        case StageReached():
            return replace(now, stage=event.stage)
        case Downtime(state="started"):
            return replace(now, downtime_since=event.time, downtime_seconds=None)
        case Downtime():
            since = now.downtime_since
            spent = event.seconds if event.seconds is not None else (None if since is None else event.time - since)
            return replace(now, downtime_since=None, downtime_seconds=spent)
        case CauseFound():
            # The first cause stands; a later one is a consequence unless the run was relaunched.
            return now if now.cause is not None and now.cause.step == event.step else replace(now, cause=event)
        case Remedy():
            kept = tuple(remedy for remedy in now.remedies if remedy.applied)
            return replace(now, remedies=(*kept, event))
        case Measured():
            return replace(now, measured=(*now.measured, event))
        case Compared():
            others = tuple(other for other in now.compared if other.what != event.what)
            return replace(now, compared=(*others, event))
        case Noted():
            return replace(now, notes=(*now.notes, event.text))
        case RunEnded():
            return replace(now, ended=event)
    return now


def _moved(step: StepView, event: StepChanged) -> StepView:
    started = step.started if step.started is not None and event.state != "checking" else event.time
    spent = event.time - started if event.state == "failed" and event.seconds is None else event.seconds
    return replace(
        step,
        state=event.state,
        detail=event.detail or (step.detail if event.state not in FINISHED else ""),
        started=started,
        seconds=spent if event.state in FINISHED else None,
        progress=None if event.state in FINISHED else step.progress,
        changes=() if event.state == "checking" else step.changes,
    )


def _with_step(now: Snapshot, name: str, change: Callable[[StepView], StepView]) -> Snapshot:
    if now.step(name) is None:
        return replace(now, steps=(*now.steps, change(StepView(name))))
    return replace(now, steps=tuple(change(step) if step.name == name else step for step in now.steps))
