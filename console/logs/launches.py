"""Where in a log each launch of the server began, and where each of its stages: found from the end, in slices.

The same cues as triage's, so a log's last launch is the one that a diagnosis speaks of. `work` scans until `WANTED`
launches are known: the present one, the one before, and the start before that, which proves where that one began.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from console.logs.harmless import by_line
from console.logs.linefile import LineFile, shown
from console.triage.entries import ORDER, Cue, compiled
from console.triage.matcher import Matcher
from console.triage.prefix import parse
from console.triage.rules import Rules, unanchored

WANTED = 3
_LATE = 4
"""A launch that has passed this stage cannot be beginning any more."""


@dataclass(frozen=True, slots=True)
class Launch:
    """`begin` is the offset of its first known line, `end` the offset behind its last, None for the present one."""

    begin: int
    end: int | None
    stages: tuple[tuple[str, int], ...] = ()
    """(stage, offset of the first line that shows it), in order."""

    def stage(self, name: str) -> tuple[int, int | None] | None:
        """From where to where the launch was in a stage; None when it was never seen there."""
        for place, (stage, begin) in enumerate(self.stages):
            if stage == name:
                return (begin, self.stages[place + 1][1] if place + 1 < len(self.stages) else self.end)
        return None


@dataclass(frozen=True, slots=True)
class _Sign:
    offset: int
    marker: str
    key: str
    order: int


class Launches:
    """The launches of `log` as it stood when this was made. Compiles its patterns: some 0.1 s of CPU."""

    def __init__(self, log: LineFile, rules: Rules) -> None:
        self._log = log
        self._cues: list[tuple[str, int, Cue]] = [(cue.id or cue.match, -1, cue) for cue in rules.launches]
        self._cues += [(stage.id, ORDER.get(stage.id, -1), cue) for stage in rules.stages for cue in stage.cues]
        often = {place for place, (_, order, _) in enumerate(self._cues) if order >= ORDER["ready"]}
        self._matcher = Matcher([unanchored(cue.match) for _, _, cue in self._cues], once=often)
        self._low = self._high = log.segments
        self._signs: list[_Sign] = []
        self.found: tuple[Launch, ...] = ()
        """Oldest first, as far as the scan has come; the first of them may have begun earlier."""

    @property
    def done(self) -> float:
        return 1.0 if self.complete else 1 - self._low / max(1, self._high)

    @property
    def complete(self) -> bool:
        return self._low == 0 or len(self.found) >= WANTED

    @property
    def present(self) -> Launch | None:
        return self.found[-1] if self.found else None

    @property
    def previous(self) -> Launch | None:
        """The launch before the present one."""
        return self.found[-2] if len(self.found) > 1 else None

    def work(self, segments: int = 32) -> bool:
        """Scan some more; True while there is more to scan."""
        if self.complete:
            return False
        first = max(0, self._low - segments)
        begin, block = self._log.block(first, self._low)
        self._low = first
        signs = [
            sign
            for at, mask in by_line(block, self._matcher.scan(block))
            for sign in self._read(begin, block, at, mask)
        ]
        self._signs[:0] = signs
        if signs:
            self.found = _launches(self._signs)
        return not self.complete

    def _read(self, begin: int, block: bytes, at: int, mask: int) -> list[_Sign]:
        end = block.find(b"\n", at)
        raw = shown(block[at : end if end >= 0 else len(block)])
        line = parse(raw)
        signs = []
        while mask:
            marker, order, cue = self._cues[(mask & -mask).bit_length() - 1]
            mask &= mask - 1
            pattern = compiled(cue.match)
            if pattern.search(line.text) or ("^" not in cue.match and pattern.search(raw)):
                signs.append(_Sign(begin + at, marker, line.key, order))
        return sorted(signs, key=lambda sign: sign.order)


def _launches(signs: list[_Sign]) -> tuple[Launch, ...]:
    starts: list[int] = []
    stages: list[list[tuple[str, int]]] = []
    markers: dict[str, str] = {}
    furthest = -1
    for sign in signs:
        if sign.order >= 0:
            if starts and sign.order > furthest:
                furthest = sign.order
                stages[-1].append((sign.marker, sign.offset))
            continue
        again = sign.marker in markers and (not sign.key or markers[sign.marker] != sign.key)
        if again or furthest > _LATE or not starts:
            starts.append(sign.offset)
            stages.append([])
            markers, furthest = {}, -1
        markers[sign.marker] = sign.key
    ends = [*starts[1:], None]
    return tuple(Launch(begin, end, tuple(known)) for begin, end, known in zip(starts, ends, stages, strict=False))


_PROCESS = re.compile(rb"\(([A-Za-z][\w.:-]*)(?: rank=\d+)?,? pid=\d+\)|\[[-\d: T.]+ ((?:DP\d+ )?TP\d+)")


def processes(log: LineFile, segments: int = 128) -> list[tuple[str, int]]:
    """(process, lines) of the processes that the end of the log names, by name; looks at its last 4 MB."""
    counts: dict[bytes, int] = {}
    for last in range(log.segments, max(0, log.segments - segments), -32):
        _, block = log.block(max(0, last - 32), last)
        for one, other in _PROCESS.findall(block):
            counts[one or other] = counts.get(one or other, 0) + 1
    return sorted((name.decode("ascii", "replace"), count) for name, count in counts.items())
