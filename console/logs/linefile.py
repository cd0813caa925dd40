"""The lines of a file, found by where they begin: no index is needed to read its end, and a small one counts its lines.

A file is cut into segments of fixed size; a segment's lines are those that begin in it, so that any segment can be read
without any other. A line is known by the offset of its first byte. Line numbers come from one running count per segment
(eight bytes per 32 KiB: 0.25 MB for 1 GB), which `work` builds in slices. Only whole lines exist here.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_right
from pathlib import Path
from types import TracebackType

from console.text import clean

SEGMENT = 1 << 15
"""Bytes per segment."""
SLICE = 1 << 20
"""Bytes read per step of the count."""
LONGEST = 20_000
"""Characters of one line that are ever shown."""

_EDGES = 1024


class LineFile:
    """Read access. `size` is the bytes of whole lines, `version` grows whenever lines were added. Offsets are line starts."""

    def __init__(self, path: Path, flags: int = os.O_RDONLY) -> None:
        self.path = path
        self._fd = os.open(path, flags | os.O_CLOEXEC, 0o600)
        self._starts = array("Q", [0])  # per segment: how many lines begin before it
        self._edges: dict[int, int] = {}
        self.version = 0
        self.size = self._whole(os.fstat(self._fd).st_size)

    @property
    def settled(self) -> int:
        """Offset up to which lines will not change any more."""
        return self.size

    def __enter__(self) -> LineFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @property
    def segments(self) -> int:
        """How many segments there are; the last one may still grow."""
        return -(-self.size // SEGMENT)

    def block(self, first: int, last: int) -> tuple[int, bytes]:
        """(offset, bytes) of all lines of segments `first` to `last`, `last` excluded."""
        begin, end = self.edge(first), self.edge(last)
        return (begin, self.read(begin, end))

    def edge(self, segment: int) -> int:
        """Where the first line begins that belongs to `segment` or to a later one; `size` when there is none."""
        at = segment * SEGMENT
        if at <= 0 or at >= self.size:
            return min(max(0, at), self.size)
        if at in self._edges:
            return self._edges[at]
        step, begin = 512, at - 1
        while begin < self.size:
            found = self.read(begin, min(begin + step, self.size)).find(b"\n")
            if found >= 0:
                self._edges[at] = begin + found + 1
                if len(self._edges) > _EDGES:
                    self._edges.clear()
                return begin + found + 1
            begin, step = begin + step, SEGMENT
        return self.size

    def raw(self, offset: int) -> bytes:
        """The bytes of the line that begins at `offset`, without its end; `LONGEST` at most."""
        data = self.read(offset, min(self.size, offset + 512))
        end = data.find(b"\n")
        if end < 0:
            data = self.read(offset, min(self.size, offset + LONGEST))
            end = data.find(b"\n")
        return data[:end] if end >= 0 else data

    def line_at(self, offset: int) -> str:
        """The text of the line that begins at `offset`, safe to show."""
        return shown(self.raw(offset))

    def start_of(self, offset: int) -> int:
        """Where the line begins that holds the byte at `offset`."""
        stop = min(offset, self.size)
        while stop > 0:
            begin = max(0, stop - 4096)
            found = self.read(begin, stop).rfind(b"\n")
            if found >= 0:
                return begin + found + 1
            stop = begin
        return 0

    def work(self, budget: int = SLICE) -> bool:
        """Count lines in up to `budget` bytes more; True while some are uncounted."""
        done = len(self._starts) - 1
        target = self.size // SEGMENT
        todo = min(target - done, max(1, budget // SEGMENT))
        if todo > 0:
            begin = max(0, done * SEGMENT - 1)
            data = self.read(begin, (done + todo) * SEGMENT - 1)
            count = self._starts[done] or 1  # line 0 begins before segment 1
            for step in range(todo):
                low = (done + step) * SEGMENT - 1 - begin
                count += data.count(b"\n", max(0, low), (done + step + 1) * SEGMENT - 1 - begin)
                self._starts.append(count)
        return len(self._starts) - 1 < target

    @property
    def counted(self) -> bool:
        """True when `number` answers for every line."""
        return len(self._starts) > self.size // SEGMENT

    def number(self, offset: int) -> int | None:
        """The number, from 0, of the line that begins at `offset`; None while it is not counted so far."""
        segment = offset // SEGMENT
        if segment >= len(self._starts):
            return None
        begin = max(0, segment * SEGMENT - 1)
        before = self._starts[segment] or (1 if offset else 0)
        return before + self.read(begin, max(begin, offset - 1)).count(b"\n")

    @property
    def known(self) -> int | None:
        """How many lines there are; None while they are being counted."""
        if not self.size:
            return 0
        if not self.counted:
            return None
        segment = len(self._starts) - 1
        begin = max(0, segment * SEGMENT - 1)
        return (self._starts[segment] or 1) + self.read(begin, self.size - 1).count(b"\n")

    def __len__(self) -> int:
        """How many lines there are. Counts what is uncounted first: half a second per GB, once."""
        while self.work(16 * SLICE):
            pass
        return self.known or 0

    def offset(self, number: int) -> int:
        """Where line `number` begins; `size` for the number behind the last line. Counts first, as `len` does."""
        total = len(self)
        if number >= total:
            return self.size
        segment = bisect_right(self._starts, number) - 1
        begin, data = self.block(segment, segment + 1)
        at = 0
        for _ in range(number - self._starts[segment]):
            at = data.find(b"\n", at) + 1
        return begin + at

    def lines(self, first: int, last: int) -> list[str]:
        """The text of lines `first` to `last`, `last` excluded, by number."""
        first = max(0, first)
        if first >= min(last, len(self)):
            return []
        data = self.read(self.offset(first), self.offset(last))
        return [shown(raw) for raw in data.removesuffix(b"\n").split(b"\n")]

    def line(self, number: int) -> str:
        """The text of one line, by number."""
        return self.lines(number, number + 1)[0]

    def since(self, moment: float) -> int | None:
        """Offset of the first line that came at `moment` (UNIX time) or later; None when no time is known."""
        return None

    def time_of(self, offset: int) -> float | None:
        """When a line came (UNIX time), None when that is not known."""
        return None

    def poll(self) -> bool:
        """Look whether the file has grown on its own; True when it has."""
        return False

    def _whole(self, size: int) -> int:
        """The bytes up to the last line end within `size`."""
        while size > 0:
            begin = max(0, size - SEGMENT)
            found = self.read(begin, size).rfind(b"\n")
            if found >= 0:
                return begin + found + 1
            size = begin
        return 0

    def read(self, begin: int, end: int) -> bytes:
        """The bytes from `begin` to `end`, `end` excluded."""
        data = os.pread(self._fd, max(0, end - begin), begin)
        while (
            data
            and len(data) < end - begin
            and (more := os.pread(self._fd, end - begin - len(data), begin + len(data)))
        ):
            data += more
        return data


class LogFile(LineFile):
    """A log file of anybody's, read only; `poll` finds what was added. Its last line may be unfinished, and is shown."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.generation = 0
        """Grows when the file was replaced or cut short; a view of it must then be made anew."""
        self._settled = self.size
        self._take(os.fstat(self._fd).st_size)

    @property
    def settled(self) -> int:
        return self._settled

    def poll(self) -> bool:
        status = os.fstat(self._fd)
        try:
            there = os.stat(self.path)
        except OSError:
            there = status  # renamed or removed: what is open can still be read
        if (there.st_dev, there.st_ino) != (status.st_dev, status.st_ino) or status.st_size < self.size:
            os.close(self._fd)
            self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            self._starts = array("Q", [0])
            self._edges = {}
            self.size = self._settled = 0
            self.generation += 1
            self._take(os.fstat(self._fd).st_size)
            return True
        if status.st_size == self.size:
            return False
        self._take(status.st_size)
        return True

    def _take(self, size: int) -> None:
        if size != self.size:
            self.version += 1
        self.size = size
        self._settled = max(self._settled, self._whole(size))


def shown(raw: bytes) -> str:
    """A line's bytes as text that is safe to show. Of a progress bar's states in one line the last is shown."""
    if len(raw) > LONGEST:
        raw = raw[:LONGEST]
    if b"\r" in raw:
        raw = next((part for part in reversed(raw.split(b"\r")) if part.strip()), b"")
    return clean(raw.decode("utf-8", "replace"))
