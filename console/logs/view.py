"""One filter over one log: which lines are shown, found newest first, in slices, and kept up as lines arrive.

A view remembers how many lines of each segment it shows (four bytes per 32 KiB of log); which ones they are is found again
when they are asked for, one segment at a time. All patterns run over a block of text in one pass. Nothing here waits:
`work` scans one slice and says whether there is more.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from itertools import accumulate

from console.logs.filters import Filter, Patterns, compiled
from console.logs.harmless import Harmless, by_line
from console.logs.linefile import SEGMENT, LineFile
from console.triage.matcher import Matcher

SLICE = 1 << 20
"""Bytes scanned per call of `work`: some two milliseconds."""
KEPT = 96
"""Segments whose shown lines are remembered."""
_INCLUDE, _EXCLUDE, _PROCESS, _LEVEL = 1, 2, 4, 8
_LOOSE = re.compile(r"\[\^|\\[sWD]|\^|\$")
_ENDS = re.compile(r"\\[AZ]")


class Asked:
    """What a filter asks of a line, as matchers; a bit per kind of pattern. Noise is not its business."""

    def __init__(self, patterns: Patterns) -> None:
        parts = [(item, _INCLUDE) for item in patterns.include] + [(item, _EXCLUDE) for item in patterns.exclude]
        parts += [(patterns.process, _PROCESS)] if patterns.process else []
        parts += [(patterns.level, _LEVEL)] if patterns.level else []
        self._parts = [(_test(text), kind) for text, kind in parts]
        self.must = 0
        for _, kind in parts:
            self.must |= kind & ~_EXCLUDE
        # what can match nothing at all, or what only Python understands, is asked of each line alone
        hard = {place for place, (text, _) in enumerate(parts) if not _quick(text)}
        easy = [place for place in range(len(parts)) if place not in hard]
        self._matcher = Matcher([parts[place][0] for place in easy], easy) if easy else None
        self._hard = sorted(hard)
        self._loose = sum(1 << place for place in easy if _LOOSE.search(parts[place][0]))
        self.all = not parts

    def find(self, block: bytes) -> list[tuple[int, int]]:
        """(where the line begins, kinds of patterns found) of the lines in which any was found, in order."""
        found = list(by_line(block, self._matcher.scan(block))) if self._matcher else []
        if self._hard:
            found = self._with_hard(block, dict(found))
        elif len(self._parts) == 1 and not self._loose:
            kind = self._parts[0][1]
            return [(begin, kind) for begin, _ in found]
        return [(begin, kinds) for begin, places in found if (kinds := self._kinds(block, begin, places))]

    def kinds(self, text: str) -> int:
        """The kinds of patterns found in one line."""
        mask = 0
        for pattern, kind in self._parts:
            if not mask & kind and pattern(text):
                mask |= kind
        return mask

    def passes(self, kinds: int) -> bool:
        return kinds & self.must == self.must and not kinds & _EXCLUDE

    def _kinds(self, block: bytes, begin: int, places: int) -> int:
        if places & self._loose:
            return self.kinds(_line(block, begin))
        mask = 0
        while places:
            mask |= self._parts[(places & -places).bit_length() - 1][1]
            places &= places - 1
        return mask

    def _with_hard(self, block: bytes, found: dict[int, int]) -> list[tuple[int, int]]:
        every = []
        for begin in line_starts(block):
            text, places = _line(block, begin), found.get(begin, 0)
            for place in self._hard:
                if self._parts[place][0](text):
                    places |= 1 << place
            if places:
                every.append((begin, places))
        return every


class View:
    """The lines of `log` that `wanted` shows, those of `window` alone if one is given (first offset, offset behind the
    last). Lines are named by their offset."""

    def __init__(
        self, log: LineFile, wanted: Filter, noise: Harmless | None = None, window: tuple[int, int | None] = (0, None)
    ) -> None:
        self.log = log
        self.wanted = wanted
        self.window = window
        self._asked = Asked(compiled(wanted))
        self._noise = None if wanted.noise else noise
        self._floor = window[0] // SEGMENT
        start = min(log.settled, log.settled if window[1] is None else window[1]) // SEGMENT
        self._start = max(start, self._floor)
        self._older, self._newer = array("I"), array("I")
        self._count = 0
        self._tail: tuple[int, ...] = ()
        self._tail_size = -1
        self._hidden: Counter[str] = Counter()
        self._tail_hidden: Counter[str] = Counter()
        self._kept: OrderedDict[int, tuple[int, ...]] = OrderedDict()
        self._grow()

    def __len__(self) -> int:
        """How many lines are shown, as far as the scan has come."""
        return self._count + len(self._tail)

    @property
    def version(self) -> tuple[int, int, int]:
        """Moves when what is shown, or how much of the log has been looked at, moved."""
        return (len(self._older), len(self), self._tail_size)

    @property
    def hidden(self) -> dict[str, int]:
        """How many lines each noise id hides, as far as the scan has come."""
        return dict(self._hidden + self._tail_hidden)

    @property
    def complete(self) -> bool:
        """True when every line has been looked at."""
        return self._low <= self._floor and not self._stale

    @property
    def done(self) -> float:
        """The part of the log that has been looked at, 0 to 1."""
        todo = max(0, self._low - self._floor)
        return 1.0 if not todo else 1 - todo / max(1, self._high - self._floor)

    def work(self, budget: int = SLICE) -> bool:
        """Scan up to `budget` bytes, new lines before old ones; True while there is more to scan."""
        if self._stale:
            self._grow()
        elif self._low > self._floor:
            first = max(self._floor, self._low - max(1, budget // SEGMENT))
            counts, hidden = self._survey(first, self._low)
            self._older.extend(reversed(counts))
            self._count += sum(counts)
            self._hidden += hidden
        return not self.complete

    def before(self, offset: int, count: int) -> list[int]:
        """Up to `count` shown lines that begin before `offset`, the nearest ones, in order."""
        found: list[int] = []
        segment = min(max(0, offset - 1) // SEGMENT, self._high)
        while len(found) < count and segment >= self._low:
            if self._holds(segment):
                here = [at for at in self.shown(segment) if at < offset]
                found[:0] = here[max(0, len(here) - (count - len(found))) :]
            segment -= 1
        return found

    def after(self, offset: int, count: int) -> list[int]:
        """Up to `count` shown lines that begin at `offset` or later, the nearest ones, in order."""
        found: list[int] = []
        segment = max(offset // SEGMENT, self._low)
        while len(found) < count and segment <= self._high:
            if self._holds(segment):
                here = [at for at in self.shown(segment) if at >= offset]
                found += here[: count - len(found)]
            segment += 1
        return found

    def shows(self, offset: int) -> bool:
        """Whether the line that begins at `offset` is shown."""
        return offset in self.shown(min(offset // SEGMENT, self._high))

    def newest(self, count: int) -> list[tuple[int, str]]:
        """(offset, text) of the last `count` shown lines, in order."""
        return [(offset, self.log.line_at(offset)) for offset in self.before(self.log.size + 1, count)]

    def shown(self, segment: int) -> tuple[int, ...]:
        """The shown lines of one segment; the highest one, still growing, may reach over several."""
        if segment >= self._high:
            return self._tail
        if segment in self._kept:
            self._kept.move_to_end(segment)
            return self._kept[segment]
        lines, _ = self._lines(segment, segment + 1)
        self._kept[segment] = lines
        if len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return lines

    @property
    def _low(self) -> int:
        return self._start - len(self._older)

    @property
    def _high(self) -> int:
        """The first segment that is not settled."""
        return self._start + len(self._newer)

    @property
    def _stale(self) -> bool:
        return self._tail_size != self._ceiling()

    def _ceiling(self) -> int:
        """Offset behind the last byte that is of interest."""
        return self.log.size if self.window[1] is None else min(self.log.size, self.window[1])

    def _holds(self, segment: int) -> bool:
        if segment >= self._start:
            return segment >= self._high or self._newer[segment - self._start] > 0
        return self._older[self._start - 1 - segment] > 0

    def _grow(self) -> None:
        """Take up what is new, a slice at most: settled segments for good, the rest until it grows on."""
        ceiling = self._ceiling()
        settled = min(self.log.settled, ceiling) // SEGMENT
        last = min(settled, self._high + SLICE // SEGMENT)
        if last > self._high:
            counts, hidden = self._survey(self._high, last)
            self._newer.extend(counts)
            self._count += sum(counts)
            self._hidden += hidden
        if last < settled:
            self._tail, self._tail_hidden = (), Counter()
            return
        self._tail, self._tail_hidden = self._lines(self._high, -(-ceiling // SEGMENT))
        self._tail_size = ceiling

    def _survey(self, first: int, last: int) -> tuple[list[int], Counter[str]]:
        """How many lines of each segment from `first` to `last`, excluded, are shown; what was hidden as noise."""
        begin, block = self.log.block(first, last)
        counts = [0] * (last - first)
        if self._asked.must or self._cuts(first, last):
            lines, hidden = self._judge(begin, block)
            for offset in lines:
                counts[offset // SEGMENT - first] += 1
            return counts, hidden
        low = 0
        for place in range(last - first):
            high = max(0, (first + place + 1) * SEGMENT - 1 - begin)
            # a line begins behind each line end; the block's first line has none before it
            counts[place] = block.count(b"\n", low, min(high, len(block) - 1)) if block else 0
            low = max(low, high)
        if block:
            counts[begin // SEGMENT - first] += 1
        gone, hidden = self._gone(block)
        for at in gone:
            counts[(begin + at) // SEGMENT - first] -= 1
        return counts, hidden

    def _lines(self, first: int, last: int) -> tuple[tuple[int, ...], Counter[str]]:
        begin, block = self.log.block(first, last)
        lines, hidden = self._judge(begin, block)
        return tuple(lines), hidden

    def _cuts(self, first: int, last: int) -> bool:
        low, high = self.window
        return first * SEGMENT < low or (high is not None and last * SEGMENT > high)

    def _judge(self, begin: int, block: bytes) -> tuple[list[int], Counter[str]]:
        """Offsets of the shown lines of a block, and what was hidden as noise."""
        if not self._asked.must and not self._cuts_at(begin, len(block)):
            gone, hidden = self._gone(block)
            return [begin + at for at in line_starts(block) if at not in gone], hidden
        if self._asked.must:
            starts = [at for at, kinds in self._asked.find(block) if self._asked.passes(kinds)]
        else:
            out = {at for at, kinds in self._asked.find(block)}
            starts = [at for at in line_starts(block) if at not in out]
        low, high = self.window
        starts = [at for at in starts if begin + at >= low and (high is None or begin + at < high)]
        noisy = self._noisy(block, starts)
        return [begin + at for at in starts if at not in noisy], Counter(noisy.values())

    def _cuts_at(self, begin: int, length: int) -> bool:
        low, high = self.window
        return begin < low or (high is not None and begin + length > high)

    def _gone(self, block: bytes) -> tuple[set[int], Counter[str]]:
        """Without anything that a line must have: the lines that are not shown."""
        gone = set() if self._asked.all else {at for at, _ in self._asked.find(block)}
        hidden: Counter[str] = Counter()
        for at, name in self._noise.find(block) if self._noise else ():
            if at not in gone:
                gone.add(at)
                hidden[name] += 1
        return gone, hidden

    def _noisy(self, block: bytes, starts: list[int]) -> dict[int, str]:
        """Those of the lines at `starts` that are noise, with the entry's id."""
        if self._noise is None or not starts:
            return {}
        ends = [block.find(b"\n", at) + 1 or len(block) for at in starts]
        pieces = [block[at:end] for at, end in zip(starts, ends, strict=True)]
        if not pieces[-1].endswith(b"\n"):
            pieces[-1] += b"\n"
        places = dict(zip(accumulate(map(len, pieces), initial=0), starts, strict=False))
        return {places[at]: name for at, name in self._noise.find(b"".join(pieces))}


def keeper(wanted: Filter, noise: Harmless | None = None) -> Callable[[str], bool]:
    """Whether a filter shows a line, one line at a time: what a `View` answers, for a stream that is kept nowhere."""
    asked = Asked(compiled(wanted))

    def shows(text: str) -> bool:
        if not asked.passes(asked.kinds(text)):
            return False
        return wanted.noise or noise is None or noise.hides(text) is None

    return shows


def keep(lines: Iterable[str], wanted: Filter, noise: Harmless | None = None) -> Iterable[str]:
    """The lines that a filter shows."""
    return filter(keeper(wanted, noise), lines)


def line_starts(block: bytes) -> list[int]:
    """Where each line of a block begins."""
    if not block:
        return []
    pieces = block.removesuffix(b"\n").split(b"\n")
    starts = [place + number for number, place in enumerate(accumulate(map(len, pieces), initial=0))]
    starts.pop()
    return starts


def _line(block: bytes, begin: int) -> str:
    end = block.find(b"\n", begin)
    return block[begin : end if end >= 0 else len(block)].decode("utf-8", "replace")


def _quick(pattern: str) -> bool:
    """Whether the matcher takes the pattern as it is: bytes, no match of nothing, no end of the whole text."""
    plain = pattern.isascii() and not _ENDS.search(pattern) and not re.search(pattern, "")
    return plain and not Matcher([pattern]).slow


def _test(pattern: str) -> Callable[[str], object]:
    """The pattern for one line, with the meaning that the matcher gives it: bytes where it takes it, else text."""
    if not _quick(pattern):
        return re.compile(pattern).search
    search = re.compile(pattern.encode()).search
    return lambda text: search(text.encode("utf-8", "replace"))
