"""All patterns of a catalogue over a block of bytes in one pass.

Hyperscan where it is installed: one scan of the block for every pattern, however many. A pattern that Hyperscan cannot
compile (look-around, back-references) and a machine without Hyperscan fall back to `re`. Patterns never cross a line end.
Answers are (end, id) pairs in order of `end`, the offset behind a match; one line may answer for a pattern more than once.
Patterns named in `once` answer for their first match in a block only.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Sequence
from typing import Any

from console.triage import cache

hyperscan: Any
try:
    import hyperscan
except ImportError:  # pragma: no cover - the wheel exists for every platform we test
    hyperscan = None

Hits = list[tuple[int, int]]


class Matcher:
    """`patterns` are regular expressions in Python's syntax; a pattern's id is its index, or its place's in
    `ids`."""

    def __init__(
        self, patterns: Sequence[str], ids: Sequence[int] | None = None, *, once: Collection[int] | bool = (),
        engine: bool = True,
    ) -> None:  # fmt: skip
        names = list(range(len(patterns))) if ids is None else list(ids)
        self._slow: list[tuple[int, re.Pattern[bytes]]] = []
        self._database: Any = None
        self._noted: list[int] = []
        # the binding stops scanning where the handler returns something true; append returns None
        self._note = lambda name, _start, _end, _flags, _ctx: self._noted.append(name)
        self._once = frozenset((names if once else ()) if isinstance(once, bool) else once)
        quick = [(name, pattern.encode()) for name, pattern in zip(names, patterns, strict=True)]
        if engine and hyperscan is not None and quick:
            quick = self._compile(quick)
        self._slow += [(name, re.compile(pattern, re.MULTILINE)) for name, pattern in quick]

    def _compile(self, wanted: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        """Compile what Hyperscan takes; the rest is returned."""
        try:
            self._database = _database(wanted, self._once)
            return []
        except hyperscan.error:
            pass
        good: list[tuple[int, bytes]] = []
        bad: list[tuple[int, bytes]] = []
        for entry in wanted:
            try:
                _database([entry], self._once)
                good.append(entry)
            except hyperscan.error:
                bad.append(entry)
        if good:
            self._database = _database(good, self._once)
        return bad

    @property
    def slow(self) -> bool:
        """Whether any pattern is left to `re`."""
        return bool(self._slow)

    def ends(self, block: bytes) -> list[int]:
        """Where matches end, whatever their pattern."""
        if self._slow or self._database is None:
            return [end for end, _ in self.scan(block)]
        found: list[int] = []
        append = found.append
        self._database.scan(block, match_event_handler=lambda _name, _start, end, _flags, _ctx: append(end))
        return found

    def masks(self, block: bytes) -> dict[int, int]:
        """Where matches end, each with the ids that end there, as a bit mask."""
        found: dict[int, int] = {}
        for end, name in self.scan(block):
            found[end] = found.get(end, 0) | 1 << name
        return found

    def finds(self, block: bytes) -> bool:
        """Whether any pattern matches; for one line, a third of what `scan` costs."""
        if self._slow or self._database is None:
            return bool(self.scan(block))
        self._database.scan(block, self._note)
        if self._noted:
            self._noted.clear()
            return True
        return False

    def scan(self, block: bytes) -> Hits:
        hits: Hits = []
        if self._database is not None:
            append = hits.append
            # hyperscan's Python binding stops scanning when the handler returns something true; append returns None.
            self._database.scan(block, lambda name, _start, end, _flags, _ctx: append((end, name)))
        if self._slow:
            for name, pattern in self._slow:
                if name in self._once:
                    first = pattern.search(block)
                    hits += [(first.end(), name)] if first else []
                else:
                    hits += [(found.end(), name) for found in pattern.finditer(block)]
        hits.sort()  # nearly in order already
        return hits


def _database(wanted: list[tuple[int, bytes]], once: Collection[int]) -> Any:
    """Compiled now, or when the same was wanted before: compiling takes some 0.4 s for the whole catalogue."""
    flags = [hyperscan.HS_FLAG_MULTILINE | (hyperscan.HS_FLAG_SINGLEMATCH if name in once else 0) for name, _ in wanted]
    made: list[Any] = []

    def make() -> bytes | None:
        made.append(hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK))
        made[0].compile(
            expressions=[pattern for _, pattern in wanted],
            ids=[name for name, _ in wanted],
            elements=len(wanted),
            flags=flags,
        )
        return bytes(hyperscan.dumpb(made[0])) if len(wanted) > 4 else None

    if len(wanted) <= 4:  # quicker compiled than looked up
        make()
        return made[0]
    # a database holds code paths chosen for the machine and its version of the library
    about = f"{hyperscan.__version__} {os.uname().machine} {sys.byteorder}".encode()
    parts = (b"hyperscan", about, *(b"%d %s %d" % (*pair, flag) for pair, flag in zip(wanted, flags, strict=True)))
    data = cache.kept(parts, make)
    if not made:
        try:
            made.append(hyperscan.loadb(data, hyperscan.HS_MODE_BLOCK))
            made[0].scratch = hyperscan.Scratch(made[0])
        except hyperscan.error:
            made.clear()
            make()
    return made[0]
