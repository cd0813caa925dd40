"""What happens, as frozen data: the only thing a run says, a store keeps and a script prints.

Each event serialises to one JSON object with `event` as its first key and `time` (UNIX seconds) as its second; `decode`
is the inverse of `encode`. Text that came from a node is cleaned and redacted before an event is made of it
(`console.deploy.run.Emitter`). Log lines never travel as events.
"""

from __future__ import annotations

import dataclasses
import functools
import typing
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

StepState = Literal["pending", "checking", "satisfied", "needed", "running", "verifying", "done", "failed", "skipped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Base: when it happened, in UNIX seconds."""

    kind: ClassVar[str] = ""
    time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(Event):
    kind: ClassVar[str] = "run-started"
    run: str
    verb: str
    node: str
    profile: str
    steps: tuple[str, ...]
    rehearsal: bool = False
    read_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StepChanged(Event):
    """A step moved. `detail` is evidence when satisfied or done, the need when needed, the cause when failed."""

    kind: ClassVar[str] = "step"
    step: str
    state: StepState
    detail: str = ""
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Progressed(Event):
    """How far a running step is: `done` of `total` in `unit` (bytes, shards, …), rate per second, seconds to go.
    None is unknown, never 0."""

    kind: ClassVar[str] = "progress"
    step: str
    text: str
    done: float | None = None
    total: float | None = None
    unit: str = ""
    rate: float | None = None
    eta: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Found(Event):
    """A finding of inspect or preflight."""

    kind: ClassVar[str] = "finding"
    step: str
    level: Literal["allow", "warn", "refuse"]
    rule: str
    text: str
    remedy: str = ""
    table: str = ""
    """Figures behind the finding, as lines of aligned text; empty where it has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed(Event):
    """One thing a plan would change, with its diff as unified text where it has one."""

    kind: ClassVar[str] = "change"
    step: str
    text: str
    diff: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Downtime(Event):
    """Downtime began (the old service was told to stop) or ended (the new one's first sensible generation)."""

    kind: ClassVar[str] = "downtime"
    state: Literal["started", "ended"]
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageReached(Event):
    """The starting server reached a stage."""

    kind: ClassVar[str] = "stage"
    stage: str
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseFound(Event):
    """Why the launch failed: the contract of `relaunch diagnose --json`, flattened to what a front end shows."""

    kind: ClassVar[str] = "cause"
    step: str
    text: str
    category: str = ""
    meaning: str = ""
    remedy: str = ""
    fix: str = ""
    process: str = ""
    ranks: int | None = None
    line: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy(Event):
    """A known remedy of a failed launch as a change of the profile, `diff`. `applied`: this run goes on with it, at its
    start or after the failure; else it was found, and waits for somebody to ask for it."""

    kind: ClassVar[str] = "remedy"
    step: str
    name: str
    text: str
    diff: str
    applied: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured(Event):
    """One load point: milliseconds and tokens per second; None where the tool did not report it."""

    kind: ClassVar[str] = "measured"
    concurrency: int
    input_tokens: int
    output_tokens: int
    completed: int
    failed: int
    output_tokens_per_s: float | None
    total_tokens_per_s: float | None
    ttft_ms: dict[str, float]
    tpot_ms: dict[str, float]
    itl_ms: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared(Event):
    """A forecast against what the started server's own log says. `what`: `kv-cache` (tokens), `weights` or `kv-memory`
    (bytes per GPU). `error` is how far the forecast was off, as a part of what was measured. None is unknown."""

    kind: ClassVar[str] = "compared"
    what: str
    unit: str
    expected: float | None = None
    measured: float | None = None
    error: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted(Event):
    """A sentence for the operator that belongs to no step's state."""

    kind: ClassVar[str] = "note"
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded(Event):
    """The end of a run. `code` is the exit code; `text` one sentence; `remedy` what to do next, or empty."""

    kind: ClassVar[str] = "run-ended"
    run: str
    code: int
    text: str
    remedy: str = ""
    seconds: float = 0.0
    downtime: float | None = None
    """Seconds without a sensible generation; None when there was no downtime, or it has not ended."""


KINDS: dict[str, type[Event]] = {
    cls.kind: cls
    for cls in (
        RunStarted, StepChanged, Progressed, Found, Changed, Downtime, StageReached, CauseFound, Remedy, Measured, Compared,
        Noted, RunEnded,
    )
}  # fmt: skip


def encode(event: Event) -> dict[str, Any]:
    """The event as JSON-ready data."""
    fields = dataclasses.asdict(event)
    time = fields.pop("time")
    return {"event": event.kind, "time": time, **fields}


@functools.cache
def _hints(kind: str) -> dict[str, Any]:
    return typing.get_type_hints(KINDS[kind])


def decode(data: dict[str, Any]) -> Event:
    """The event that `encode` made `data` of. Unknown fields of a newer version are dropped; an unknown kind raises
    ValueError."""
    cls = KINDS.get(str(data.get("event")))
    if cls is None:
        raise ValueError(f"unknown event {data.get('event')!r}")
    hints = _hints(cls.kind)
    values = {field.name: data[field.name] for field in dataclasses.fields(cls) if field.name in data}
    for name, value in values.items():
        if isinstance(value, list) and typing.get_origin(hints[name]) is tuple:
            values[name] = tuple(value)
    return cls(**values)
