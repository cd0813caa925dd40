"""How a run ended, in a word or two, by its exit code. A code that is none of these is told as failed."""

from __future__ import annotations

from console.errors import ExitCode

OUTCOMES: dict[int, str] = {
    ExitCode.DONE: "done",
    ExitCode.REFUSED: "refused",
    ExitCode.UNREACHABLE: "unreachable",
    ExitCode.LOCKED: "locked",
    ExitCode.DOWNLOAD: "download failed",
    ExitCode.UNIT_FAILED: "unit failed",
    ExitCode.NOT_READY: "not ready",
    ExitCode.NONSENSE: "nonsense",
    ExitCode.BELOW_GATE: "too slow",
    ExitCode.RESTORED: "restored",
    ExitCode.ROLLBACK_FAILED: "NOT restored",
    ExitCode.INTERRUPTED: "interrupted",
}
