"""Which lines are noise: the catalogue's harmless lines, searched in whole blocks. Pure.

A line is hidden when an entry of the noise catalogue matches it, unless it is loud (an error by its looks), matches a
line-failure of the catalogue, or the entry is one to be shown (`show`), or holds in certain stages only: which stage a
line belongs to is not known here, and what is in doubt is shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from console.logs.filters import LOUD, trimmed
from console.triage.entries import Failure, Noise, compiled
from console.triage.matcher import Hits, Matcher
from console.triage.prefix import parse
from console.triage.rules import Rules, unanchored

_LOOSE = re.compile(r"\[\^|\\[sWD]|\^|\$")
_LOUD = 0


class Harmless:
    """Compiles its patterns when made: some 0.2 s of CPU for the shipped catalogue, once per process (`harmless`)."""

    def __init__(self, noise: Iterable[Noise], failures: Iterable[Failure] = ()) -> None:
        self.entries = tuple(entry for entry in noise if not entry.show and not entry.stages)
        self.why = {entry.id: entry.why for entry in self.entries}
        loud = [LOUD, *(unanchored(rule.match) for rule in failures if rule.where == "line" and rule.kind != "wrapper")]
        quiet = [trimmed(unanchored(entry.match)) for entry in self.entries]
        self._matcher = Matcher([*loud, *quiet], [_LOUD] * len(loud) + list(range(1, len(quiet) + 1)))
        self._loud = [re.compile(pattern) for pattern in loud]
        self._known: dict[int, str] = {}
        self._doubtful = frozenset(
            place for place, entry in enumerate(self.entries, 1) if entry.unless or _LOOSE.search(entry.match)
        )

    def find(self, block: bytes) -> list[tuple[int, str]]:
        """(where the line ends in `block`, behind its line end; noise id) of every line to hide, in order. The block ends
        with a line end."""
        lines: list[tuple[int, int]] = []
        add, seek = lines.append, block.find
        stop = mask = 0
        for end, number in self._matcher.scan(block):
            if end <= stop:
                mask |= 1 << number
                continue
            if mask and not mask & 1:
                add((stop, mask))
            stop = seek(b"\n", end - 1) + 1
            mask = 1 << number
        if mask and not mask & 1:
            add((stop, mask))
        known = self._known
        return [(stop, name) for stop, mask in lines if (name := known.get(mask) or self._name(block, stop, mask))]

    def _name(self, block: bytes, stop: int, mask: int) -> str:
        """The entry that hides the line which ends at `stop`; empty when none does after all."""
        sure = (mask & -mask).bit_length() - 1
        if sure not in self._doubtful:
            return self._known.setdefault(mask, self.entries[sure - 1].id)
        text = block[block.rfind(b"\n", 0, stop - 1) + 1 : stop - 1].decode("utf-8", "replace")
        return next((entry.id for entry in self._of(mask) if self._holds(entry, text)), "")

    def _of(self, mask: int) -> Iterator[Noise]:
        while mask:
            yield self.entries[(mask & -mask).bit_length() - 2]
            mask &= mask - 1

    def hides(self, text: str) -> str | None:
        """The noise id for which a line is hidden, or None: the same answer as `find`, line by line."""
        if any(pattern.search(text) for pattern in self._loud):
            return None
        return next((entry.id for entry in self.entries if self._holds(entry, text)), None)

    @staticmethod
    def _holds(entry: Noise, raw: str) -> bool:
        if "^" in entry.match:
            if not compiled(entry.match).search(parse(raw).text):
                return False
        elif not compiled(entry.match).search(raw):
            return False
        return not (entry.unless and compiled(entry.unless).search(raw))


_MADE: dict[tuple[tuple[Noise, ...], tuple[Failure, ...]], Harmless] = {}


def harmless(rules: Rules) -> Harmless:
    """The harmless lines of a catalogue; compiled once."""
    key = (rules.noise, rules.failures)
    if key not in _MADE:
        _MADE[key] = Harmless(*key)
    return _MADE[key]


def compiled_already(rules: Rules) -> Harmless | None:
    """What `harmless` has made before, at no cost."""
    return _MADE.get((rules.noise, rules.failures))


def by_line(block: bytes, hits: Hits) -> Iterator[tuple[int, int]]:
    """(where the line begins, bit mask of the ids found in it) for each line of `block` that was hit, in order."""
    begin, stop, mask = 0, -1, 0
    find, rfind = block.find, block.rfind
    for end, name in hits:
        at = end - 1 if end else 0
        if at > stop or stop < 0:
            if mask:
                yield begin, mask
            begin, mask = rfind(b"\n", 0, at) + 1, 0
            stop = find(b"\n", at)
            if stop < 0:
                stop = len(block)
        mask |= 1 << name
    if mask:
        yield begin, mask
