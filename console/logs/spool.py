"""The spool: sanitised log text in a file, the offset of every line in memory, nothing else.

One writer, any number of readers in the same process. What is appended is made safe for a terminal first; CR ends a line
as LF does, since a progress bar's updates are lines to whoever reads later. A gap (a lost link) is a line of its own that
`gap` marks, so that nothing is dropped silently.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate
from pathlib import Path
from types import TracebackType

from console.text import clean

_KEEP = bytes(byte for byte in range(256) if byte >= 32 or byte in (9, 10))
_DROP = bytes(byte for byte in range(256) if byte not in _KEEP) + b"\x7f"
_BLOCK = 1 << 20
GAP = "──── "
"""What a line begins with that marks a gap or another remark of ours."""


class Spool:
    """Lines count from 0. `version` grows whenever lines were added. A spool file that exists is continued."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._ends = array("Q")
        self._marks: list[tuple[int, float]] = []
        self._tail = b""
        self.version = 0
        self._index_existing()

    def __enter__(self) -> Spool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        os.close(self._fd)

    def __len__(self) -> int:
        return len(self._ends)

    @property
    def size(self) -> int:
        """Bytes of whole lines."""
        return self._ends[-1] if self._ends else 0

    def append(self, data: bytes, *, now: float | None = None) -> int:
        """Add log text in whatever pieces it comes; the number of whole lines that it completed.

        `now` is the UNIX time at which it came, kept once per batch, for time windows. An unfinished last line waits for
        its end; `flush` ends it.
        """
        data = self._tail + data
        end = max(data.rfind(b"\n"), data.rfind(b"\r"))
        if end == len(data) - 1 and data.endswith(b"\r"):
            end = max(data.rfind(b"\n", 0, end), data.rfind(b"\r", 0, end))  # a CR may be the first half of CRLF
        whole, self._tail = data[: end + 1], data[end + 1 :]
        return self._add(whole, now) if whole else 0

    def append_lines(self, lines: Iterable[str], *, now: float | None = None) -> int:
        """Add whole lines."""
        text = "".join(f"{line.rstrip()}\n" for line in lines)
        return self._add(text.encode("utf-8", "replace"), now) if text else 0

    def flush(self) -> None:
        """End an unfinished last line."""
        if self._tail:
            tail, self._tail = self._tail, b""
            self._add(tail.rstrip(b"\r") + b"\n", None)

    def gap(self, text: str, *, now: float | None = None) -> None:
        """A remark of ours between the lines, e.g. that the link was lost and what came meanwhile is missing."""
        self.flush()
        self.append_lines([f"{GAP}{text}"], now=now)

    def lines(self, first: int, last: int) -> list[str]:
        """The text of lines `first` to `last`, `last` excluded."""
        first, last = max(0, first), min(last, len(self))
        if first >= last:
            return []
        text = self.block(first, last).decode("utf-8", "replace")
        return text.split("\n")[:-1]

    def line(self, number: int) -> str:
        """The text of one line."""
        return self.lines(number, number + 1)[0]

    def block(self, first: int, last: int) -> bytes:
        """The bytes of lines `first` to `last`, `last` excluded, line ends included."""
        begin, end = self.begin(first), self._ends[last - 1]
        return os.pread(self._fd, end - begin, begin)

    def begin(self, number: int) -> int:
        """Offset of the first byte of a line."""
        return self._ends[number - 1] if number else 0

    def number_at(self, offset: int, low: int = 0) -> int:
        """The line that holds the byte at `offset`; `low` is a line that is known not to lie behind it."""
        return bisect_right(self._ends, offset, low)

    def since(self, moment: float) -> int:
        """The first line that came at `moment` (UNIX time) or later; 0 when no time is known."""
        place = bisect_left(self._marks, moment, key=lambda mark: mark[1])
        return self._marks[place][0] if place < len(self._marks) else (len(self) if self._marks else 0)

    def time_of(self, number: int) -> float | None:
        """When a line came, None when that is not known."""
        place = bisect_right(self._marks, number, key=lambda mark: mark[0]) - 1
        return self._marks[place][1] if place >= 0 else None

    def _add(self, data: bytes, now: float | None) -> int:
        safe = _safe(data)
        written = 0
        while written < len(safe):
            written += os.write(self._fd, memoryview(safe)[written:])
        before = len(self)
        self._index(safe)
        if now is not None and (not self._marks or self._marks[-1][1] < now):
            self._marks.append((before, now))
        self.version += 1
        return len(self) - before

    def _index(self, data: bytes) -> None:
        pieces = data.split(b"\n")
        pieces.pop()
        start = self.size
        ends = accumulate(map(len, pieces), initial=start)
        next(ends)
        self._ends.extend(end + number for number, end in enumerate(ends, 1))

    def _index_existing(self) -> None:
        offset, rest = 0, b""
        for data in self._blocks():
            offset += len(data)
            whole, newline, rest = (rest + data).rpartition(b"\n")
            if newline:
                self._index(whole + newline)
        if rest:
            # a console that was killed while writing left half a line; it stays, and is ended
            os.write(self._fd, b"\n")
            self._index(rest + b"\n")

    def _blocks(self) -> Iterator[bytes]:
        offset = 0
        while data := os.pread(self._fd, _BLOCK, offset):
            offset += len(data)
            yield data


def _safe(data: bytes) -> bytes:
    """`data` without anything that a terminal obeys, line ends as LF."""
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    if b"\x1b" not in data and data.isascii():
        return data.translate(None, _DROP) if data.translate(None, _KEEP) else data
    # one bad line must not swallow its neighbours, as an unterminated escape sequence would
    lines = data.decode("utf-8", "replace").split("\n")
    return "\n".join(line if line.isascii() and line.isprintable() else clean(line) for line in lines).encode()
