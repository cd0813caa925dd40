"""A start as it is known while it is followed, what is kept of its journal, and how it may end without becoming ready."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from console.errors import RelaunchError
from console.node.facts import UnitState
from console.node.gpu import GpuSample
from console.node.journal import Entry
from console.triage.entries import ORDER, READY

if TYPE_CHECKING:
    from console.triage import Diagnosis, LoadProgress, Outside, Reader, Rules

HEAD, TAIL = 5_000, 45_000
"""Lines of the invocation's journal that are kept for evidence, from its beginning and from its end."""


class Ended(RelaunchError):
    """How a start ended without becoming ready. `kind`: never-started, no-log, crashed, restarted, failed or hung."""

    def __init__(self, kind: str, starting: Starting, seconds: float | None = None) -> None:
        super().__init__(f"{starting.unit}: {kind}")
        self.kind = kind
        self.starting = starting
        self.seconds = seconds


@dataclass(slots=True)
class Spool:
    """The journal as read, bounded: the first and the last lines, and how many fell out between them."""

    head: list[str] = field(default_factory=list)
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL))
    count: int = 0

    def add(self, entry: Entry) -> None:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(entry.time))
        line = f"{stamp}Z {entry.source or '?'}[{entry.pid or '?'}]: {entry.message}"
        self.count += 1
        if len(self.head) < HEAD:
            self.head.append(line)
        else:
            self.tail.append(line)

    def text(self) -> str:
        left_out = self.count - len(self.head) - len(self.tail)
        gap = [f"[{left_out} lines left out]"] if left_out else []
        return "\n".join([*self.head, *gap, *self.tail, ""])


@dataclass(slots=True)
class Starting:
    """One start being followed. Times are monotonic seconds."""

    unit: str
    rules: Rules
    reader: Reader
    former: str = ""
    """Invocation that the unit had before; it is not ours."""
    invocation: str = ""
    cursor: str | None = None
    restarts: int = 0
    state: UnitState | None = None
    spool: Spool = field(default_factory=Spool)
    systemd_said: list[str] = field(default_factory=list)
    wrote: bool = False
    """A process of the unit has written a line."""
    stage: str | None = None
    progress: LoadProgress | None = None
    began: float = field(default_factory=time.monotonic)
    moved: float = field(default_factory=time.monotonic)
    gpus: GpuSample | None = None
    memory: Mapping[int, int] = field(default_factory=dict)
    failing: Diagnosis | None = None
    """What triage said first of a failure, while the process still lived."""
    failing_since: float = 0.0
    told_cause: str | None = None
    """Text of the cause that was told while the process still lived."""
    forgiven: int | None = None
    """Line of a cause after which the start went on all the same."""
    shards_from: tuple[float, int] | None = None
    answers: bool = False
    """/health answered 200."""
    told: float = 0.0
    seen: set[str] = field(default_factory=set)

    @property
    def ready(self) -> bool:
        return self.answers or self._at_least(READY)

    @property
    def nearly(self) -> bool:
        """The engine is up, by its log; HTTP comes next."""
        return self._at_least(ORDER["engine_ready"])

    def _at_least(self, place: int) -> bool:
        return self.stage is not None and ORDER.get(self.stage, -1) >= place

    def diagnosis(self, outside: Outside | None = None) -> Diagnosis:
        return self.reader.diagnosis(outside)

    def take(self, entry: Entry) -> bool:
        """Take one journal entry in; True when a process of the unit wrote it, and not systemd: neither the manager nor
        its child on the way to the exec, whose name in the log is the program's in brackets."""
        self.cursor = entry.cursor
        self.spool.add(entry)
        if entry.source == "systemd" or entry.pid == 1 or entry.source.startswith("("):
            self.systemd_said = [*self.systemd_said[-19:], entry.message]
            return False
        self.wrote = True
        self.reader.feed_line(entry.message)
        return True
