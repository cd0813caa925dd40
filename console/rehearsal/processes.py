"""Processes as PID 1 sees them: spawn, reap, find descendants, tell one process from a later one with the same pid.

One `Reaper` per server collects every exit status of its children on SIGCHLD, including orphans that came to it as
subreaper. No asyncio subprocess may be used beside it: its child watcher would lose the race for the status.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36


def become_subreaper() -> bool:
    """Make orphaned descendants children of this process. False where the system has no such thing (macOS)."""
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    return int(libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)) == 0


def start_ticks(pid: int) -> int | None:
    """Start time in clock ticks since boot, field 22 of /proc/PID/stat: with the pid, the identity of a process.

    None when it is gone, or has ended and only waits for its parent.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return None if fields[0] in (b"Z", b"X") else int(fields[19])
    except (OSError, IndexError, ValueError):
        return None


def parents() -> dict[int, int]:
    """Parent of each live process; zombies are left out."""
    found: dict[int, int] = {}
    for entry in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        if not entry.isdigit():
            continue
        try:
            fields = Path("/proc", entry, "stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            continue
        if fields and fields[0] not in (b"Z", b"X"):
            found[int(entry)] = int(fields[1])
    return found


def descendants(pid: int, table: Mapping[int, int] | None = None) -> list[int]:
    """Every live process below `pid`, parents before children."""
    children: dict[int, list[int]] = {}
    for child, parent in (parents() if table is None else table).items():
        children.setdefault(parent, []).append(child)
    found, queue = [], [pid]
    while queue:
        for child in children.get(queue.pop(0), ()):
            found.append(child)
            queue.append(child)
    return found


def send(pid: int, number: int) -> bool:
    """Signal one process; False when it is gone already. 0, 1 and negative numbers mean whole groups: refused."""
    if pid <= 1:
        raise ValueError(f"{pid} is no process to signal")
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


class Reaper:
    """Collects the exit status of every child. `wait` gives a future with the status: negative for a signal."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[int, asyncio.Future[int]] = {}
        loop.add_signal_handler(signal.SIGCHLD, self._reap)

    def close(self) -> None:
        self._loop.remove_signal_handler(signal.SIGCHLD)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            future = self._waiting.pop(pid, None)
            if future is not None and not future.done():
                future.set_result(os.waitstatus_to_exitcode(status))

    def spawn(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str | Path,
        stdin: int,
        stdout: int,
        stderr: int,
        pass_fds: Sequence[int] = (),
    ) -> tuple[int, asyncio.Future[int]]:
        """Start `argv` in a session of its own; raises OSError when it cannot be executed."""
        # the loop runs signal handlers between callbacks only, so that no status is reaped before it is waited for
        child = subprocess.Popen(
            argv,
            env=dict(env),
            cwd=cwd,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=tuple(pass_fds),
            start_new_session=True,
        )
        child.returncode = 0  # the reaper owns the status; without this Popen would try to collect it too
        future: asyncio.Future[int] = self._loop.create_future()
        self._waiting[child.pid] = future
        return child.pid, future


def kill_below(pid: int) -> None:
    """SIGKILL every descendant of `pid`, until none is left or only the unkillable are."""
    seen: set[int] = set()
    while fresh := [child for child in descendants(pid) if child not in seen]:
        for child in fresh:
            seen.add(child)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(child, signal.SIGKILL)


def end_children(seconds: int = 5) -> None:
    """SIGKILL whatever is below this process and wait until it is gone; what cannot be killed is left after `seconds`."""
    kill_below(os.getpid())
    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(seconds)
    with contextlib.suppress(ChildProcessError, TimeoutError):
        while True:
            os.waitpid(-1, 0)
    signal.alarm(0)


def _too_long(number: int, frame: object) -> None:
    raise TimeoutError
