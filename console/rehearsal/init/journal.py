"""The practice node's journal: one JSON object a line, with the fields and cursors of journald.

A unit's output arrives over a socket, as it does at journald, so that each line carries the pid of whoever wrote it.
Lines are split at newline and NUL and at 48 KiB; a carriage return stays inside its message; empty lines are dropped;
a leading `<N>` is a priority. `watch` tells readers of the file that it has grown.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import struct
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import IO

LINE_MAX = 48 << 10
_KEEP_BYTES = 32 << 20
_PRIORITY = re.compile(rb"<([0-7])>")


def boot_id() -> str:
    """The machine's own boot id, as facts show it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")
    except OSError:
        return uuid.uuid4().hex


class Journal:
    """The one writer of the journal file."""

    def __init__(self, path: Path, host: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        _trim(path)
        self._file: IO[bytes] = path.open("ab", buffering=0)
        self._host = host
        self._boot = boot_id()
        self._sequence = uuid.uuid4().hex
        self._number = 0
        self._last = 0
        self._watchers: set[Callable[[], None]] = set()

    def close(self) -> None:
        self._file.close()

    def watch(self, grown: Callable[[], None]) -> Callable[[], None]:
        """Call `grown` after each write; returns what ends that."""
        self._watchers.add(grown)
        return lambda: self._watchers.discard(grown)

    def write(self, entries: list[dict[str, str]]) -> None:
        """Append entries, each with at least MESSAGE, PRIORITY and _PID."""
        if self._file.closed:
            return  # the power is cut
        lines = [json.dumps(self._stamped(entry), ensure_ascii=False) for entry in entries]
        self._file.write("".join(line + "\n" for line in lines).encode("utf-8", "surrogateescape"))
        for grown in tuple(self._watchers):
            grown()

    def _stamped(self, entry: dict[str, str]) -> dict[str, str]:
        self._number += 1
        self._last = max(self._last + 1, time.time_ns() // 1000)
        monotonic = time.monotonic_ns() // 1000
        cursor = (
            f"s={self._sequence};i={self._number:x};b={self._boot};m={monotonic:x};t={self._last:x};"
            f"x={uuid.uuid4().int >> 64:x}"
        )
        return {
            "__CURSOR": cursor,
            "__REALTIME_TIMESTAMP": str(self._last),
            "__MONOTONIC_TIMESTAMP": str(monotonic),
            "_BOOT_ID": self._boot,
            "_HOSTNAME": self._host,
            **entry,
        }

    def manager(self, unit: str, invocation: str, message: str, *, priority: int = 6, **extra: str) -> None:
        """What PID 1 says of a unit."""
        entry = {
            "MESSAGE": message, "PRIORITY": str(priority), "SYSLOG_IDENTIFIER": "systemd", "SYSLOG_FACILITY": "3",
            "_TRANSPORT": "journal", "_PID": "1", "_UID": "0", "_COMM": "systemd", "_SYSTEMD_UNIT": "init.scope",
            "_SYSTEMD_CGROUP": "/init.scope", **extra,
        }  # fmt: skip
        if unit:
            entry["UNIT"] = unit
        if invocation:
            entry["INVOCATION_ID"] = invocation
        self.write([entry])

    def kernel(self, message: str, priority: int = 3) -> None:
        """What the kernel says; only faults make it speak."""
        self.write([{
            "MESSAGE": message, "PRIORITY": str(priority), "SYSLOG_IDENTIFIER": "kernel", "SYSLOG_FACILITY": "0",
            "_TRANSPORT": "kernel",
        }])  # fmt: skip


class Output:
    """One stream of a unit's output into the journal. `end` is the socket that its processes write to."""

    def __init__(self, journal: Journal, fields: dict[str, str], pid: Callable[[], int]) -> None:
        self._journal = journal
        self._fields = fields
        self._pid = pid
        self._rest: dict[int, bytes] = {}
        self._mine, self.end = socket.socketpair()
        self._mine.setblocking(False)
        if hasattr(socket, "SO_PASSCRED"):
            self._mine.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._mine, self._readable)

    def _readable(self) -> None:
        if self._read_once() == 0:
            self._loop.remove_reader(self._mine)

    def _read_once(self) -> int:
        """Take what is there: how many bytes; 0 at the end of the stream, -1 when nothing is there yet."""
        try:
            data, ancillary, _, _ = self._mine.recvmsg(256 << 10, socket.CMSG_SPACE(12) if self._credentials else 0)
        except BlockingIOError:
            return -1
        except OSError:
            return 0
        pid = next((struct.unpack("iii", bytes(raw[:12]))[0] for _, kind, raw in ancillary if kind == 2), 0)
        if data:
            self._take(pid or self._pid(), data)
        return len(data)

    @property
    def _credentials(self) -> bool:
        return hasattr(socket, "SO_PASSCRED")

    def _take(self, pid: int, data: bytes) -> None:
        *lines, rest = re.split(rb"[\n\0]", self._rest.pop(pid, b"") + data)
        while len(rest) >= LINE_MAX:
            lines.append(rest[:LINE_MAX])
            rest = rest[LINE_MAX:]
        if rest:
            self._rest[pid] = rest
        self._say(pid, lines)

    def _say(self, pid: int, lines: list[bytes]) -> None:
        entries = []
        for line in lines:
            for at in range(0, len(line), LINE_MAX):
                piece = line[at : at + LINE_MAX]
                match = _PRIORITY.match(piece)
                text = piece[match.end() :] if match else piece
                if text:
                    entries.append({
                        "MESSAGE": text.decode("utf-8", "surrogateescape"),
                        "PRIORITY": match[1].decode() if match else "6", "_PID": str(pid), **self._fields,
                    })  # fmt: skip
        if entries:
            self._journal.write(entries)

    def pump(self) -> None:
        """Take all that has been written until now."""
        while self._read_once() > 0:
            pass

    def close(self) -> None:
        """Take all that was written before, then forget the stream."""
        self.end.close()
        self._loop.remove_reader(self._mine)
        self.pump()
        for pid, rest in self._rest.items():
            self._say(pid, [rest])
        self._mine.close()


def _trim(path: Path) -> None:
    """Keep the newer half of a journal that has grown large, between two lives of the node."""
    try:
        size = path.stat().st_size
    except OSError:
        return
    if size <= _KEEP_BYTES:
        return
    staged = path.with_suffix(".new")
    with path.open("rb") as old, staged.open("wb") as new:
        old.seek(size - _KEEP_BYTES // 2)
        old.readline()
        while chunk := old.read(1 << 20):
            new.write(chunk)
    os.replace(staged, path)
