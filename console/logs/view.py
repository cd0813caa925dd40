"""One filter over one log: which lines are shown, found newest first, in slices, and kept up as lines arrive.

A view remembers how many lines of each segment it shows (four bytes per 32 KiB of log); which ones they are is found again
when they are asked for, one segment at a time. All patterns run over a block of text in one pass. Nothing here waits:
`work` scans one slice and says whether there is more.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, pairwise

from console.logs.filters import Filter, Patterns, compiled
from console.logs.harmless import Harmless
from console.logs.linefile import SEGMENT, LineFile
from console.triage.matcher import Matcher

SLICE = 1 << 20
"""Bytes scanned per call of `work`: some two milliseconds."""
DENSE = 2000
"""Bytes of log per answer of the matcher, below which answers are many."""
KEPT = 96
"""Segments whose shown lines are remembered."""
_INCLUDE, _EXCLUDE, _PROCESS, _LEVEL = 1, 2, 4, 8
_LOOSE = re.compile(r"\[\^|\\[sWD]|\^|\$")
_ENDS = re.compile(r"\\[AZ]")


class Asked:
    """What a filter asks of a line, as matchers; a bit per kind of pattern. Noise is not its business.

    Each pattern is continued to the end of its line, so that it answers once for a line, with the place of its end.
    """

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
        self._matcher = Matcher([_to_line_end(parts[place][0]) for place in easy], easy) if easy else None
        self._hard = sorted(hard)
        self._loose = sum(1 << place for place in easy if _LOOSE.search(parts[place][0]))
        self.all = not parts
        self.one = len(parts) == 1 and not self._hard and not self._loose
        """`ends` alone answers."""
        self._bare = Matcher([parts[0][0]]) if self.one else None
        self._dense = False

    def ends(self, block: bytes) -> list[int]:
        """Where the lines end in which the only pattern was found.

        The matcher is twice as fast with the pattern as it is, but then answers wherever in a line a match can end, and the
        line's end has to be sought for each: done so while answers are few, as told by the block before.
        """
        if self._bare is None or self._matcher is None:
            return []
        if self._dense:
            found = self._matcher.ends(block)
            self._dense = len(found) * DENSE > len(block)
            return found
        found, stop = [], 0
        hits = self._bare.ends(block)
        for end in hits:
            if end > stop:
                stop = block.find(b"\n", end - 1) + 1
                found.append(stop)
        self._dense = len(hits) * DENSE > len(block)
        return found

    def find(self, block: bytes) -> list[tuple[int, int]]:
        """(where the line ends in `block`, kinds of patterns found) of the lines in which any was found, in order. The
        block ends with a line end."""
        if self.one:
            kind = self._parts[0][1]
            return [(end, kind) for end in self.ends(block)]
        found = self._matcher.masks(block) if self._matcher else {}
        if self._hard:
            self._ask_hard(block, found)
        return [(end, kinds) for end, places in sorted(found.items()) if (kinds := self._kinds(block, end, places))]

    def kinds(self, text: str) -> int:
        """The kinds of patterns found in one line."""
        mask = 0
        for pattern, kind in self._parts:
            if not mask & kind and pattern(text):
                mask |= kind
        return mask

    def passes(self, kinds: int) -> bool:
        return kinds & self.must == self.must and not kinds & _EXCLUDE

    def _kinds(self, block: bytes, end: int, places: int) -> int:
        if places & self._loose:
            return self.kinds(_line(block, end))
        mask = 0
        while places:
            mask |= self._parts[(places & -places).bit_length() - 1][1]
            places &= places - 1
        return mask

    def _ask_hard(self, block: bytes, found: dict[int, int]) -> None:
        begin = 0
        while begin < len(block):
            end = block.find(b"\n", begin) + 1
            text = block[begin : end - 1].decode("utf-8", "replace")
            places = sum(1 << place for place in self._hard if self._parts[place][0](text))
            if places:
                found[end] = found.get(end, 0) | places
            begin = end


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
        begin, block = self._block(first, last)
        edges = [_edge(block, segment * SEGMENT - begin) for segment in range(first + 1, last)]
        edges.append(len(block))
        if self._cuts(begin, len(block)) or (self._asked.must and not (self._asked.one and self._noise is None)):
            lines, hidden = self._judge(begin, block)
            return _per_edge([offset - begin + 1 for offset in lines], edges), hidden
        if self._asked.must:
            return _per_edge(self._asked.ends(block), edges), Counter()
        gone, hidden = self._gone(block)
        low, counts = 0, []
        for edge in edges:
            counts.append(block.count(b"\n", low, edge))
            low = edge
        return [count - out for count, out in zip(counts, _per_edge(gone, edges), strict=True)], hidden

    def _block(self, first: int, last: int) -> tuple[int, bytes]:
        """The lines of some segments, the last one ended even where it is unfinished."""
        begin, block = self.log.block(first, last)
        return (begin, block if block.endswith(b"\n") or not block else block + b"\n")

    def _lines(self, first: int, last: int) -> tuple[tuple[int, ...], Counter[str]]:
        begin, block = self._block(first, last)
        lines, hidden = self._judge(begin, block)
        return tuple(lines), hidden

    def _cuts(self, begin: int, length: int) -> bool:
        """Whether the window's border lies in a block."""
        low, high = self.window
        return begin < low or (high is not None and begin + length > high)

    def _judge(self, begin: int, block: bytes) -> tuple[list[int], Counter[str]]:
        """Offsets of the shown lines of a block, and what was hidden as noise."""
        if not self._asked.must and not self._cuts(begin, len(block)):
            ends, hidden = self._gone(block)
            gone = set(ends)
            return [begin + at for at, end in _spans(block) if end not in gone], hidden
        if self._asked.must:
            found = [end for end, kinds in self._asked.find(block) if self._asked.passes(kinds)]
            starts = [block.rfind(b"\n", 0, end - 1) + 1 for end in found]
        else:
            out = {end for end, _ in self._asked.find(block)}
            starts = [at for at, end in _spans(block) if end not in out]
        low, high = self.window
        starts = [at for at in starts if begin + at >= low and (high is None or begin + at < high)]
        noisy = self._noisy(block, starts)
        return [begin + at for at in starts if at not in noisy], Counter(noisy.values())

    def _gone(self, block: bytes) -> tuple[list[int], Counter[str]]:
        """Without anything that a line must have: where the lines end that are not shown, in order."""
        out = [] if self._asked.all else [end for end, _ in self._asked.find(block)]
        noisy = self._noise.find(block) if self._noise else []
        if not out:
            return [end for end, _ in noisy], Counter([name for _, name in noisy])
        known = set(out)
        fresh = [(end, name) for end, name in noisy if end not in known]
        return sorted([*out, *(end for end, _ in fresh)]), Counter([name for _, name in fresh])

    def _noisy(self, block: bytes, starts: list[int]) -> dict[int, str]:
        """Those of the lines at `starts` that are noise, with the entry's id."""
        if self._noise is None or not starts:
            return {}
        pieces = [block[at : block.find(b"\n", at) + 1] for at in starts]
        places = dict(zip(accumulate(map(len, pieces)), starts, strict=True))
        return {places[end]: name for end, name in self._noise.find(b"".join(pieces))}


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


def _spans(block: bytes) -> Iterator[tuple[int, int]]:
    """(begin, end behind its line end) of every line of a block that ends with a line end."""
    starts = line_starts(block)
    return zip(starts, [*starts[1:], len(block)] if starts else (), strict=True)


def _edge(block: bytes, at: int) -> int:
    """Where the first line begins at or behind `at`, in a block that begins and ends with a line; its length without one."""
    return 0 if at <= 0 else (block.find(b"\n", at - 1) + 1 or len(block))


def _per_edge(ends: list[int], edges: list[int]) -> list[int]:
    """How many of `ends`, which rise, lie behind one edge and not behind the next."""
    places = [0, *(bisect_right(ends, edge) for edge in edges)]
    return [high - low for low, high in pairwise(places)]


def _line(block: bytes, end: int) -> str:
    """The line that ends at `end`."""
    return block[block.rfind(b"\n", 0, end - 1) + 1 : end - 1].decode("utf-8", "replace")


def _to_line_end(pattern: str) -> str:
    return f"(?:{pattern})[^\\n]*\\n"


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
