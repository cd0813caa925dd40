"""What a stand-in program gets back from the practice init: pieces of its stdout and stderr, then its exit code.

On the wire: the number of payload bytes, a newline, then NUL-separated program, working folder and arguments; the
caller's stdin, stdout and stderr travel beside it. Back: `o`, `e` or `x`, the number of bytes, a newline, the bytes.
"""

from __future__ import annotations

import contextlib
import os
import socket
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Request:
    program: str
    folder: str
    argv: tuple[str, ...]
    fds: tuple[int, ...]


@dataclass(slots=True)
class Reply:
    """Collects frames for one caller; a caller that has gone away is no error."""

    frames: list[bytes] = field(default_factory=list)

    def out(self, text: str) -> None:
        self._frame(b"o", os.fsencode(text))

    def err(self, text: str) -> None:
        self._frame(b"e", os.fsencode(text))

    def end(self, code: int) -> None:
        self._frame(b"x", str(code).encode())

    def _frame(self, kind: bytes, data: bytes) -> None:
        if data:
            self.frames.append(kind + str(len(data)).encode() + b"\n" + data)


class Parser:
    """Takes bytes and descriptors as they come; `request` is there when all has come."""

    def __init__(self) -> None:
        self._data = b""
        self._fds: list[int] = []

    def feed(self, data: bytes, fds: list[int]) -> Request | None:
        self._data += data
        self._fds += fds
        head, newline, rest = self._data.partition(b"\n")
        if not newline or len(rest) < int(head):
            return None
        program, folder, *argv = (os.fsdecode(word) for word in rest[: int(head)].split(b"\0"))
        request = Request(program, folder, tuple(argv), tuple(self._fds))
        self._fds = []
        return request

    def close(self) -> None:
        for fd in self._fds:
            with contextlib.suppress(OSError):
                os.close(fd)


def receive(sock: socket.socket) -> tuple[bytes, list[int]]:
    """Bytes and descriptors that are there now."""
    data, fds, _, _ = socket.recv_fds(sock, 1 << 16, 3)
    return data, fds
