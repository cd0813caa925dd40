"""One filter over one spool: which lines are shown, found newest first, in slices, and kept up as lines arrive.

All patterns run over a block of text in one pass. A view costs eight bytes per shown line. Nothing here waits; `work`
scans one slice and says whether there is more.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable

from console.logs.filters import Filter, compiled
from console.logs.spool import Spool
from console.triage.matcher import Matcher

SLICE = 1 << 20
"""Bytes scanned per call of `work`: some five milliseconds."""
_INCLUDE, _EXCLUDE, _PROCESS, _LEVEL, _LOUD, _NOISE = range(6)


class View:
    """The lines of `spool` that `wanted` shows. `noise` are (id, expression) pairs of lines known to be harmless."""

    def __init__(self, spool: Spool, wanted: Filter, noise: Iterable[tuple[str, str]] = ()) -> None:
        self.spool = spool
        self.wanted = wanted
        patterns = compiled(wanted)
        known = [] if wanted.noise else list(noise)
        self._noise_ids = [name for name, _ in known]
        parts: list[tuple[str, int]] = [(item, _INCLUDE) for item in patterns.include]
        parts += [(item, _EXCLUDE) for item in patterns.exclude]
        parts += [(patterns.process, _PROCESS)] if patterns.process else []
        parts += [(patterns.level, _LEVEL)] if patterns.level else []
        parts += [(patterns.loud, _LOUD)] if known else []
        parts += [(expression, _NOISE + place) for place, (_, expression) in enumerate(known)]
        self._matcher = Matcher([text for text, _ in parts], [number for _, number in parts]) if parts else None
        self._must = {number for _, number in parts if number in (_INCLUDE, _PROCESS, _LEVEL)}
        self._older = array("Q")  # found behind the start, newest first
        self._newer = array("Q")  # found since, oldest first
        self._low = self._high = len(spool)
        self.hidden: dict[str, int] = {}
        """How many lines each noise id hides, as far as the scan has come."""

    @property
    def version(self) -> tuple[int, int]:
        """Moves when what is shown moved."""
        return (len(self._older), len(self._newer))

    @property
    def complete(self) -> bool:
        """True when every line of the spool has been looked at."""
        return self._low == 0 and self._high == len(self.spool)

    @property
    def scanned(self) -> int:
        """How many lines have been looked at."""
        return self._high - self._low

    def __len__(self) -> int:
        return len(self._older) + len(self._newer)

    def number(self, place: int) -> int:
        """The spool's line number of the `place`-th shown line, oldest first, as far as the scan has come."""
        behind = len(self._older)
        return self._older[behind - 1 - place] if place < behind else self._newer[place - behind]

    def place(self, number: int) -> int:
        """The place of the first shown line that is `number` or later."""
        return bisect_left(range(len(self)), number, key=self.number)

    def lines(self, first: int, last: int) -> list[tuple[int, str]]:
        """(line number, text) of the shown lines `first` to `last`, `last` excluded."""
        numbers = [self.number(place) for place in range(max(0, first), min(last, len(self)))]
        return [(number, self.spool.line(number)) for number in numbers]

    def work(self, budget: int = SLICE) -> bool:
        """Scan up to `budget` bytes, new lines before old ones; True while there is more to scan."""
        if self._high < len(self.spool):
            last = self._until(self._high, budget)
            self._newer.extend(self._shown(self._high, last))
            self._high = last
        elif self._low > 0:
            first = self._from(self._low, budget)
            self._older.extend(reversed(self._shown(first, self._low)))
            self._low = first
        return not self.complete

    def _until(self, first: int, budget: int) -> int:
        last = self.spool.number_at(self.spool.begin(first) + budget, first)
        return min(max(last, first + 1), len(self.spool))

    def _from(self, last: int, budget: int) -> int:
        offset = self.spool.begin(last) - budget
        return 0 if offset <= 0 else min(self.spool.number_at(offset) + 1, last - 1)

    def _shown(self, first: int, last: int) -> list[int]:
        if self._matcher is None:
            return list(range(first, last))
        base = self.spool.begin(first)
        found: dict[int, set[int]] = {}
        number = first
        for end, kind in self._matcher.scan(self.spool.block(first, last)):
            number = self.spool.number_at(base + max(0, end - 1), number)
            found.setdefault(number, set()).add(kind)
        if self._must:
            return [number for number, kinds in sorted(found.items()) if self._passes(kinds)]
        gone = {number for number, kinds in found.items() if not self._passes(kinds)}
        return [number for number in range(first, last) if number not in gone]

    def _passes(self, kinds: set[int]) -> bool:
        if not self._must <= kinds or _EXCLUDE in kinds:
            return False
        noise = [kind for kind in kinds if kind >= _NOISE]
        if noise and _LOUD not in kinds:
            name = self._noise_ids[min(noise) - _NOISE]
            self.hidden[name] = self.hidden.get(name, 0) + 1
            return False
        return True
