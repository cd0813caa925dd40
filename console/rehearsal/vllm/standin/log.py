"""Writing the log in the shape of a version: prefixes, multi-line records with CRLF, progress bars with CR.

Up to 0.29 vLLM wraps the streams of a process, so that every line of it carries `(Name pid=N)`; from 0.30 on the prefix
belongs to log records alone. Each line is one write, and a record of many lines holds a lock, so that eight workers do
not cut each other's lines.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator

from .versions import Traits


class Log:
    """The log of one process. `name` may change, as a worker learns its rank."""

    def __init__(self, traits: Traits, name: str, lock: int) -> None:
        self.traits = traits
        self.name = name
        self._lock = lock

    def forked(self, name: str) -> Log:
        """The log of a child process."""
        return Log(self.traits, name, self._lock)

    def info(self, where: str, text: str) -> None:
        self.record("INFO", where, text)

    def warning(self, where: str, text: str) -> None:
        self.record("WARNING", where, text)

    def error(self, where: str, text: str) -> None:
        self.record("ERROR", where, text)

    def record(self, level: str, where: str, text: str) -> None:
        """A log record: the head is repeated on every line, lines but the last end in CRLF."""
        stamp = time.strftime("%m-%d %H:%M:%S")
        head = f"{self._prefix}{level} {stamp} [{where}] "
        lines = text.split("\n")
        with self._whole(len(lines)):
            for number, line in enumerate(lines, 1):
                self._write(1, f"{head}{line}" + ("\r\n" if number < len(lines) else "\n"))

    def raw(self, text: str) -> None:
        """What is no log record: uvicorn's lines, warnings, the last traceback. Prefixed where the streams are wrapped."""
        lines = text.split("\n")
        with self._whole(len(lines)):
            for line in lines:
                self._write(2, f"{self._prefix if self.traits.wraps_streams else ''}{line}\n")

    def foreign(self, text: str) -> None:
        """A line of C++ code, which no version prefixes."""
        self._write(2, text + "\n")

    def progress(self, text: str, *, last: bool = False, joined: bool = False) -> None:
        """One update of a tqdm bar: CR first. `joined` bars run on in one line, as the capture bar does."""
        prefix = self._prefix if self.traits.wraps_streams else ""
        if joined:
            self._write(2, f"\r{text}" + ("\n" if last else ""))
        else:
            self._write(2, f"{prefix}\r{text}\n" + (f"{prefix}\n" if last else ""))

    def start_joined(self) -> None:
        """The prefix before a bar whose updates follow in one line."""
        if self.traits.wraps_streams:
            self._write(2, self._prefix)

    @property
    def _prefix(self) -> str:
        return f"({self.name} pid={os.getpid()}) " if self.name else ""

    @contextlib.contextmanager
    def _whole(self, lines: int) -> Iterator[None]:
        if lines < 2 or self._lock < 0:
            yield
            return
        fcntl.lockf(self._lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._lock, fcntl.LOCK_UN)

    @staticmethod
    def _write(fd: int, text: str) -> None:
        data = text.encode("utf-8", "replace")
        # a reader that went away must not end the server
        with contextlib.suppress(OSError):
            while data:
                data = data[os.write(fd, data) :]


def bar(done: int, total: int, started: float, text: str, *, width: int = 10) -> str:
    """A tqdm bar with its time, e.g. `text:  34%|███▍      | 12/35 [00:19<00:02,  9.93it/s]`."""
    blocks = " ▏▎▍▌▋▊▉█"
    eighths = width * 8 * done // total if total else 0
    filled = "█" * (eighths // 8) + (blocks[eighths % 8] if eighths % 8 else "")
    return (
        f"{text}: {100 * done // max(total, 1):3d}%|{filled:<{width}}| {done}/{total} [{_rate(done, total, started)}]"
    )


def shard_bar(done: int, total: int, started: float) -> str:
    """The bar of the weight loader, e.g. `Loading safetensors checkpoint shards:  48% Completed | 57/119 [00:01<00:01, 41.0it/s]`."""
    return (
        f"Loading safetensors checkpoint shards: {100 * done // max(total, 1):3d}% Completed | {done}/{total} "
        f"[{_rate(done, total, started)}]"
    )


def _rate(done: int, total: int, started: float) -> str:
    spent = max(time.monotonic() - started, 1e-6)
    if done == 0:
        return "00:00<?, ?it/s"
    rate = done / spent
    shown = f"{rate:5.2f}it/s" if rate >= 1 else f"{1 / rate:5.2f}s/it"
    return f"{_clock(spent)}<{_clock((total - done) / rate)}, {shown}"


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60:02d}:{int(seconds) % 60:02d}"
