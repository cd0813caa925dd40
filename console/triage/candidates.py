"""Lines that may explain a failure, bounded in number, and the choice of the one that does.

A candidate is made where an exception's last line, a record at ERROR level or a line of the catalogue stands. Equal texts
fold into one candidate that remembers which processes said it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from console.triage.entries import Failure
from console.triage.prefix import Line

MOST: Final = 96
"""Candidates kept per launch; a log has a handful, a storm of requests' errors any number."""
LONGEST: Final = 2000
"""Characters of a cause that are kept."""
_STRENGTH: Final = {"cause": 3.0, "symptom": 2.0, "sign": 1.0}
_DIGITS = re.compile(r"0x[0-9a-f]+|\d+")


@dataclass(slots=True)
class Candidate:
    text: str
    line: int
    process: str | None
    key: str
    rank: int | None
    weight: int
    """3 a worker or native code, 2 the engine, 1 the server and who gives no name."""
    stage: str | None
    rule: Failure | None = None
    handled: bool = False
    """Logged below ERROR, or in a destructor: whoever logged it went on."""
    survived: bool = False
    """The same process reached a later stage afterwards."""
    framed: bool = False
    """The stage was read from the traceback's frames, which know better than the last cue."""
    ready: bool = False
    """Said after the server had become ready."""
    before: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    end: int = 0
    keys: set[str] = field(default_factory=set)
    count: int = 1

    @property
    def strength(self) -> float:
        base = _STRENGTH.get(self.rule.kind, 0.0) if self.rule else 2.0
        if self.handled:
            return 0.3 + base / 100
        return 0.6 + base / 100 if self.survived else base

    @property
    def of_kernel(self) -> bool:
        return self.rule is not None and self.rule.where == "kernel"

    @property
    def fold(self) -> str:
        rule = self.rule.id if self.rule else ""
        return rule + "|" + _DIGITS.sub("#", self.text[:240])

    def says_again(self, other: Candidate) -> bool:
        """Whether this is the exception that `other`, a record of the same process, had only announced."""
        return (
            other.rule is not None
            and self.rule is other.rule
            and self.key == other.key
            and self.line > other.line
            and not other.text.startswith(self.text)
            and self.text.endswith(other.text)
        )


def weigh(line: Line, native: bool = False) -> int:
    if native or line.is_worker:
        return 3
    return 2 if line.process and "Engine" in line.process else 1


def _first(pool: Iterable[Candidate]) -> Candidate | None:
    return max(pool, key=lambda each: (each.strength, each.weight, -each.line), default=None)


class Candidates:
    """In order of their first line. When full, the weakest of the later half makes room."""

    def __init__(self) -> None:
        self.kept: list[Candidate] = []

    def add(self, new: Candidate) -> Candidate:
        """Keep `new`; the answer is the candidate to extend."""
        self.kept.append(new)
        if len(self.kept) > MOST:
            self.settle()
            if len(self.kept) > MOST:
                self._drop()
        return new

    def settle(self) -> None:
        """Fold equal ones. Done late, since a candidate still grows while its message is read."""
        first: dict[str, Candidate] = {}
        for each in self.kept:
            same = first.setdefault(f"{each.fold}|{each.ready}", each)
            if same is not each:
                same.keys |= each.keys
                same.count += each.count
                same.handled = same.handled and each.handled
        self.kept = list(first.values())

    def _drop(self) -> None:
        later = range(len(self.kept) // 4, len(self.kept))
        weakest = min(later, key=lambda place: (self.kept[place].strength, -place))
        del self.kept[weakest]

    def best(self, pool: Iterable[Candidate] | None = None) -> Candidate | None:
        """The strongest; of equals a worker's before the engine's before the server's; of those the earliest. A line of the
        kernel comes first where what the server says does not explain itself, or is often an echo of such a line."""
        chosen = [each for each in (self.kept if pool is None else pool) if each.strength > 0]
        said = _first(each for each in chosen if not each.of_kernel)
        kernel = _first(each for each in chosen if each.of_kernel)
        if kernel and (said is None or said.strength < 3 or (said.rule is not None and said.rule.outside)):
            return kernel
        return said and next((each for each in chosen if each.says_again(said)), said)

    def passed(self, key: str, order: int, orders: dict[str, int]) -> None:
        """The process `key` reached the stage of `order`: what it said in an earlier one did not stop it."""
        for each in self.kept:
            if each.key == key and not each.ready and orders.get(each.stage or "", -1) < order:
                each.survived = True
