"""Tracebacks in a log, as what can be folded: which lines are frames, and under which head they stand.

Read from the log itself and not from what a filter shows, so that the answer for a line is the same from wherever one comes
to it: each segment is read with the segments before it in which a traceback may have begun.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from console.logs import linefile
from console.logs.linefile import LineFile, shown
from console.logs.view import line_starts
from console.triage.prefix import parse
from console.triage.tracebacks import Tracebacks

LOOKBACK = 5
"""Segments before one that are read for heads: eight ranks' tracebacks at once take some 160 KiB."""
KEPT = 64
_WORD = b"Traceback (most recent call last)"


@dataclass(frozen=True, slots=True)
class Fold:
    """A line of a traceback: where its head begins, and what the line is: head, frame, exception or message."""

    head: int
    role: str


class Folds:
    """`of` says what a line is; asked once per drawn line, answered from memory for lines near each other."""

    def __init__(self, log: LineFile) -> None:
        self._log = log
        self._segment = linefile.SEGMENT
        self._kept: OrderedDict[tuple[int, int], dict[int, Fold]] = OrderedDict()
        self._heads: OrderedDict[int, bool] = OrderedDict()

    def of(self, offset: int) -> Fold | None:
        """The fold to which the line that begins at `offset` belongs."""
        return self._read(offset // self._segment).get(offset)

    def members(self, head: int) -> list[tuple[int, str]]:
        """(offset, role) of every line of the traceback whose head begins at `head`, the head first."""
        first = head // self._segment
        found: list[tuple[int, str]] = []
        for segment in range(first, min(first + LOOKBACK + 1, self._log.segments)):
            found += [(at, fold.role) for at, fold in self._read(segment).items() if fold.head == head]
        return found

    def frames(self, head: int) -> int:
        """How many lines fold away under a head."""
        return sum(role == "frame" for _, role in self.members(head))

    def _read(self, segment: int) -> dict[int, Fold]:
        settled = (segment + 1) * self._segment <= self._log.settled
        key = (segment, 0 if settled else self._log.size)
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        first = segment
        while first > 0 and segment - first < LOOKBACK and self._has_head(first - 1):
            first -= 1
        begin, block = self._log.block(first, segment + 1)
        found = _folds(begin, block, segment * self._segment) if _WORD in block else {}
        self._kept[key] = found
        if len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return found

    def _has_head(self, segment: int) -> bool:
        if segment not in self._heads:
            self._heads[segment] = _WORD in self._log.block(segment, segment + 1)[1]
            if len(self._heads) > 1024:
                self._heads.popitem(last=False)
        return self._heads[segment]


def _folds(begin: int, block: bytes, wanted: int) -> dict[int, Fold]:
    """The folds of the lines at `wanted` and later; those before are only read."""
    tracebacks = Tracebacks()
    heads: dict[int, int] = {}
    found: dict[int, Fold] = {}
    # nothing before the first head can belong to one
    first = block.rfind(b"\n", 0, block.find(_WORD)) + 1
    for number, at in enumerate(line_starts(block[first:])):
        at += first
        end = block.find(b"\n", at)
        line = parse(shown(block[at : end if end >= 0 else len(block)]))
        if not tracebacks and "Traceback" not in line.text:
            continue
        role, unit, _ = tracebacks.feed(number, line)
        if role is None or unit is None:
            continue
        if role == "head":
            heads[unit.first] = begin + at
        if begin + at >= wanted and unit.first in heads:
            found[begin + at] = Fold(heads[unit.first], role)
    return found
