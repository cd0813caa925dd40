"""Processes as vLLM has them: forks with a title of their own, JSON lines over socket pairs, shared memory that leaks on SIGKILL."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import secrets
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from .gpu_state import ROOT_VARIABLE

_PR_SET_NAME = 15


def set_title(title: str) -> None:
    """Show `title` in ps and comm, as setproctitle does: the argument area is overwritten, the environment blanked
    (unless SPT_NOENV is set). Nothing happens where there is no /proc."""
    if not sys.platform.startswith("linux"):
        return
    with contextlib.suppress(OSError, ValueError, IndexError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_NAME, ctypes.c_char_p(title.encode()[:15]), 0, 0, 0)
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        start, end, env_start, env_end = (int(fields[number - 3]) for number in (48, 49, 50, 51))
        room = end - start
        if not (0 < start < end and room < 1 << 20):
            return
        ctypes.memmove(start, title.encode()[: room - 1].ljust(room, b"\0"), room)
        if "SPT_NOENV" not in os.environ and 0 < env_end - env_start < 1 << 22:
            ctypes.memset(env_start, 0, env_end - env_start)


class Channel:
    """One end of a socket pair that carries JSON lines."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._rest = b""

    @staticmethod
    def pair() -> tuple[Channel, Channel]:
        left, right = socket.socketpair()
        return Channel(left), Channel(right)

    def fileno(self) -> int:
        return self.sock.fileno()

    def send(self, message: dict[str, Any]) -> bool:
        """False when the other end is gone."""
        try:
            self.sock.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            return False
        return True

    def receive(self) -> dict[str, Any] | None:
        """The next message, waited for; None when the other end is gone."""
        while b"\n" not in self._rest:
            try:
                data = self.sock.recv(65536)
            except InterruptedError:
                continue
            except OSError:
                return None
            if not data:
                return None
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        message = json.loads(line)
        return message if isinstance(message, dict) else None

    def close(self) -> None:
        self.sock.close()


def spawn(run: Callable[[], int], title: str) -> int:
    """Fork a child that runs `run` under `title`; returns its pid."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        set_title(title)
        code = run()
    except SystemExit as leave:
        code = leave.code if isinstance(leave.code, int) else 1
    finally:
        _leave(code)
    raise AssertionError("unreachable")


def _leave(code: int) -> NoReturn:
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def reap(pid: int) -> int | None:
    """Wait for a child; its exit code (negative for a signal), None when it is not ours."""
    while True:
        try:
            _, status = os.waitpid(pid, 0)
        except InterruptedError:
            continue
        except ChildProcessError:
            return None
        return os.waitstatus_to_exitcode(status)


class SharedMemory:
    """The `psm_…` and `sem.mp-…` files of an engine: held open while it lives, removed by a clean stop, left by SIGKILL."""

    def __init__(self, root: Path) -> None:
        folder = root / "dev" / "shm" if os.environ.get(ROOT_VARIABLE) else Path("/dev/shm")
        names = [f"psm_{secrets.token_hex(4)}", f"psm_{secrets.token_hex(4)}", f"sem.mp-{secrets.token_hex(4)}"]
        self._paths: list[Path] = []
        self._files: list[int] = []
        with contextlib.suppress(OSError):
            for name in names:
                path = folder / name
                self._files.append(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
                self._paths.append(path)
                os.ftruncate(self._files[-1], 32 if name.startswith("sem") else 1 << 20)

    def unlink(self) -> None:
        for path in self._paths:
            path.unlink(missing_ok=True)
