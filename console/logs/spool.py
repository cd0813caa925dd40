"""The spool: sanitised log text in a file of ours, and when its lines came; nothing else.

One writer, any number of readers in the same process. What is appended is made safe for a terminal first; CR ends a line
as LF does, since a progress bar's updates are lines to whoever reads later. A gap (a lost link) is a line of its own that
`gap` marks, so that nothing is dropped silently.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from pathlib import Path

from console.logs.linefile import LineFile
from console.text import clean

_KEEP = bytes(byte for byte in range(256) if byte >= 32 or byte in (9, 10))
_DROP = bytes(byte for byte in range(256) if byte not in _KEEP) + b"\x7f"
GAP = "──── "
"""What a line begins with that marks a gap or another remark of ours."""
MARK_SECONDS = 1.0
"""Times of lines are kept to this, so that they cost sixteen bytes a second whatever the rate."""


class Spool(LineFile):
    """A spool file that exists is continued; half a line that a killed console left is ended."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        self._mark_offsets = array("Q")
        self._mark_times = array("d")
        self._tail = b""
        if os.fstat(self._fd).st_size > self.size:
            self._write(b"\n")
            self.size = os.fstat(self._fd).st_size

    def __enter__(self) -> Spool:
        return self

    def append(self, data: bytes, *, now: float | None = None) -> int:
        """Add log text in whatever pieces it comes; the number of whole lines that it completed.

        `now` is the UNIX time at which it came, kept to the second, for time windows. An unfinished last line waits for
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

    def since(self, moment: float) -> int | None:
        """Offset of the first line that came at `moment` (UNIX time) or later; None when no time is known."""
        if not self._mark_times:
            return None
        place = bisect_left(self._mark_times, moment)
        if place == 0 and self._mark_offsets[0] > 0:
            return None  # it lies among lines of an earlier console, whose times are not known here
        return self._mark_offsets[place] if place < len(self._mark_offsets) else self.size

    def time_of(self, offset: int) -> float | None:
        """When a line came (UNIX time, to the second), None when that is not known."""
        place = bisect_right(self._mark_offsets, offset) - 1
        return self._mark_times[place] if place >= 0 else None

    def _add(self, data: bytes, now: float | None) -> int:
        safe = _safe(data)
        self._write(safe)
        if now is not None and (not self._mark_times or self._mark_times[-1] + MARK_SECONDS <= now):
            self._mark_offsets.append(self.size)
            self._mark_times.append(now)
        self.size += len(safe)
        self.version += 1
        return safe.count(b"\n")

    def _write(self, data: bytes) -> None:
        written = 0
        while written < len(data):
            written += os.write(self._fd, memoryview(data)[written:])


def _safe(data: bytes) -> bytes:
    """`data` without anything that a terminal obeys, line ends as LF."""
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    if b"\x1b" not in data and data.isascii():
        return data.translate(None, _DROP) if data.translate(None, _KEEP) else data
    # one bad line must not swallow its neighbours, as an unterminated escape sequence would
    lines = data.decode("utf-8", "replace").split("\n")
    return "\n".join(line if line.isascii() and line.isprintable() else clean(line) for line in lines).encode()
