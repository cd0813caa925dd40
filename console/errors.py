"""The error tree and the exit codes: the one place that says what a failure means to a caller.

Every error an operator can meet is a `RelaunchError`: `message` says what is wrong and where, `remedy` what would be
right, and `code` is the exit code of the process that ends with it. Anything else that escapes is a defect and ends with
`ExitCode.UNEXPECTED`.

    RelaunchError                1
    ├─ UsageError                2   command line, profile, nodes file or script cannot be used as written
    │  └─ InvalidFile            2   with every problem as file:line:col
    ├─ Refused                   3   preflight or a safety rule says no; nothing was changed
    ├─ Unreachable               4   no connection, or lost and not found again
    │  ├─ AuthenticationFailed   4
    │  └─ HostKeyRejected        4
    ├─ Locked                    5   someone else's run holds the node
    ├─ DownloadFailed            6   download or integrity
    ├─ UnitFailed                7   the unit did not start, or died while starting
    ├─ NotReady                  8   started, and did not become ready
    ├─ Nonsense                  9   ready, and generates garbage
    ├─ BelowGate                 10  works, and is slower than the profile allows
    ├─ Restored                  11  failed; the last good release is serving again
    ├─ RollbackFailed            12  failed, and the way back failed too
    ├─ CommandFailed             1   a command on the node returned something else than expected
    └─ Interrupted               130 the operator left; remote work goes on
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar


class ExitCode(IntEnum):
    """Exit codes of every `relaunch` process; 11 and 12 are never 0."""

    DONE = 0
    UNEXPECTED = 1
    USAGE = 2
    REFUSED = 3
    UNREACHABLE = 4
    LOCKED = 5
    DOWNLOAD = 6
    UNIT_FAILED = 7
    NOT_READY = 8
    NONSENSE = 9
    BELOW_GATE = 10
    RESTORED = 11
    ROLLBACK_FAILED = 12
    INTERRUPTED = 130


class RelaunchError(Exception):
    """Something an operator can act on. `message` is one or more plain sentences; `remedy` may be empty."""

    code: ClassVar[ExitCode] = ExitCode.UNEXPECTED

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy


class UsageError(RelaunchError):
    code = ExitCode.USAGE


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One thing wrong in a file the operator wrote. `line` and `column` count from 1."""

    file: str
    line: int
    column: int
    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.field}: {self.message}"


class InvalidFile(UsageError):
    """A file with one or more problems; all of them are told at once."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems


class Refused(RelaunchError):
    code = ExitCode.REFUSED


def no_room(where: str) -> Refused:
    """What a full disk of the node is called, wherever it shows."""
    return Refused(f"no room for {where}", "make room on that disk, then say the same again")


class Unreachable(RelaunchError):
    code = ExitCode.UNREACHABLE


class AuthenticationFailed(Unreachable):
    pass


class HostKeyRejected(Unreachable):
    pass


class Locked(RelaunchError):
    code = ExitCode.LOCKED


class DownloadFailed(RelaunchError):
    code = ExitCode.DOWNLOAD


class UnitFailed(RelaunchError):
    code = ExitCode.UNIT_FAILED


class NotReady(RelaunchError):
    code = ExitCode.NOT_READY


class Nonsense(RelaunchError):
    code = ExitCode.NONSENSE


class BelowGate(RelaunchError):
    code = ExitCode.BELOW_GATE


class Restored(RelaunchError):
    code = ExitCode.RESTORED


class RollbackFailed(RelaunchError):
    code = ExitCode.ROLLBACK_FAILED


class CommandFailed(RelaunchError):
    """A command on the node ended otherwise than expected. `argv` holds no secret by construction."""

    def __init__(self, argv: tuple[str, ...], code: int, err: str) -> None:
        first = next((line for line in err.splitlines() if line.strip()), "it printed no error")
        super().__init__(f"{argv[0] if argv else 'command'} ended with code {code}: {first}")
        self.argv = argv
        self.exit_status = code
        self.err = err


class Interrupted(RelaunchError):
    code = ExitCode.INTERRUPTED
