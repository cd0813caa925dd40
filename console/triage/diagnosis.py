"""What triage answers: the diagnosis, its parts, and the facts from outside the log that can be joined to it.

`Diagnosis.to_json()` is the object that `relaunch diagnose --json` prints. Lines count from 1 in the input as given. Keys
beside the contract of the design say more and never replace it: `certain` is False where the log only lets us suspect,
`where` is "log", "kernel" or "unit" for the place that the cause was read from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Outcome = Literal["failed", "ready", "hung", "unfinished", "empty"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """Facts that no log of the server holds. None and () mean unknown, never "nothing".

    `kernel` are lines of the kernel log since the start (OOM killer, Xid, AER, segfault). `unit_result` is systemd's
    Result (success, exit-code, signal, core-dump, oom-kill, timeout, start-limit-hit), `exit_status` the main process's
    code, or the signal's number where `unit_result` is signal or core-dump. `terminated_by` names who sent SIGTERM.
    `silent_seconds` is the time since the server's last line.
    """

    alive: bool | None = None
    silent_seconds: float | None = None
    unit_result: str | None = None
    exit_status: int | None = None
    terminated_by: str | None = None
    kernel: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """Weight loading: shards read of all shards, the checkpoint's bytes where the log names them, ranks done loading."""

    done: int
    total: int
    total_bytes: int | None = None
    ranks_done: int = 0
    ranks: int = 0

    @property
    def done_bytes(self) -> int | None:
        """Bytes read, taking shards as equal in size; None when the log does not name the checkpoint's size."""
        if self.total_bytes is None or not self.total:
            return None
        return self.total_bytes * self.done // self.total


@dataclass(frozen=True, slots=True)
class RankState:
    """How far one worker came: `process` as the log names it, the last stage that it reported itself."""

    process: str
    rank: int | None
    stage: str | None
    line: int


@dataclass(frozen=True, slots=True)
class Cause:
    """The line that explains the failure. `ranks` counts the processes that said the same."""

    text: str
    line: int | None
    process: str | None
    ranks: int
    context: tuple[int, int] | None
    around: tuple[str, ...] = ()
    at: int = 0
    """Index in `around` of the cause's own line."""
    where: str = "log"
    only_rank: int | None = None
    """The rank, when one rank alone failed while others of its kind were running: points at one GPU."""


@dataclass(frozen=True, slots=True)
class NoiseCount:
    id: str
    count: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    outcome: Outcome
    stage: str | None
    engine: str | None
    version: str | None
    cause: Cause | None
    category: str | None
    meaning: str
    remedy: str
    fix: str | None
    certain: bool
    noise: tuple[NoiseCount, ...]
    lines: int
    launches: int = 1
    rule: str | None = None
    progress: LoadProgress | None = None
    ranks: tuple[RankState, ...] = ()
    evidence: tuple[str, ...] = ()
    """Lines from outside the log that bear on the failure."""
    silent_seconds: float | None = None

    def to_json(self) -> dict[str, Any]:
        """The object of DESIGN 4, with additions; every value is plain JSON."""
        cause = self.cause
        return {
            "outcome": self.outcome,
            "stage": self.stage,
            "engine": self.engine,
            "version": self.version,
            "cause": None if cause is None else _cause_json(cause),
            "category": self.category,
            "meaning": self.meaning,
            "remedy": self.remedy,
            "fix": self.fix,
            "certain": self.certain,
            "noise": [{"id": n.id, "count": n.count, "reason": n.reason} for n in self.noise],
            "lines": self.lines,
            "launches": self.launches,
            "progress": None if self.progress is None else _progress_json(self.progress),
            "ranks": [{"process": r.process, "rank": r.rank, "stage": r.stage, "line": r.line} for r in self.ranks],
            "evidence": list(self.evidence),
            "silent_seconds": self.silent_seconds,
        }


def _cause_json(cause: Cause) -> dict[str, Any]:
    return {
        "text": cause.text,
        "line": cause.line,
        "process": cause.process,
        "ranks": cause.ranks,
        "only_rank": cause.only_rank,
        "context": None if cause.context is None else list(cause.context),
        "where": cause.where,
    }


def _progress_json(progress: LoadProgress) -> dict[str, Any]:
    return {
        "done": progress.done,
        "total": progress.total,
        "done_bytes": progress.done_bytes,
        "total_bytes": progress.total_bytes,
        "ranks_done": progress.ranks_done,
        "ranks": progress.ranks,
    }
