"""What stands in a log pane, one under another: lines, tracebacks folded under their heads, equal lines of many ranks as one.

Items are made for the page that is drawn and never for the whole log. An item is named by the offset of its first line.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from console.logs.folds import Folds
from console.logs.spool import GAP
from console.logs.stamps import clock
from console.logs.view import View
from console.triage.prefix import Line, parse

CHUNK = 64
MOST_RANKS = 64
_KEPT = 4096


@dataclass(frozen=True, slots=True)
class Item:
    """`count` is how many lines a fold hides, or how many ranks said the same."""

    offset: int
    last: int
    raw: str
    line: Line
    kind: Literal["line", "gap", "fold", "ranks"] = "line"
    count: int = 0
    names: tuple[str, ...] = ()

    @property
    def who(self) -> str:
        """The process, as it stands in its column: `Worker_TP0`, `Worker x8`."""
        name = self.line.process or ""
        return f"{name.split('_')[0].split('-')[0].split(' ')[0]} ×{self.count}" if self.kind == "ranks" else name


class Items:
    """The items of a view. `opened` are the folds that the operator unfolded, by their offset."""

    def __init__(self, view: View, folds: Folds) -> None:
        self._view = view
        self._folds = folds
        self.opened: set[int] = set()
        self._parsed: OrderedDict[int, tuple[str, Line]] = OrderedDict()

    def after(self, offset: int, count: int) -> list[Item]:
        """Up to `count` items, the first of them the one that begins at `offset` or next behind it."""
        found: list[Item] = []
        while len(found) <= count:
            chunk = self._view.after(offset, CHUNK)
            if not chunk:
                break
            self._join(found, chunk)
            offset = chunk[-1] + 1
        return found[:count]

    def before(self, offset: int, count: int) -> list[Item]:
        """Up to `count` items before the one at `offset`, the nearest ones, in order."""
        wanted = max(CHUNK, 2 * count)
        while True:
            chunk = self._view.before(offset, wanted)
            found: list[Item] = []
            self._join(found, chunk)
            whole = len(chunk) < wanted
            if whole or len(found) > count + 1:
                # the first item may have begun before the chunk
                return found[max(0 if whole else 1, len(found) - count) :]
            wanted *= 4

    def at(self, offset: int) -> Item | None:
        """The item that begins at `offset` or next behind it."""
        return next(iter(self.after(offset, 1)), None)

    def members(self, item: Item) -> list[int]:
        """The offsets of all lines that an item stands for; of a traceback's line the whole traceback."""
        fold = self._folds.of(item.offset)
        if fold is not None:
            return [offset for offset, _ in self._folds.members(fold.head)]
        return [item.offset]

    def toggle(self, item: Item) -> bool:
        """Unfold what an item stands for, or fold it again; False when there is nothing to unfold."""
        fold = self._folds.of(item.offset)
        if fold is not None:
            self.opened ^= {fold.head}
            return True
        if item.kind == "ranks":
            self.opened.update(at for at in self._view.after(item.offset, 8 * MOST_RANKS) if at <= item.last)
            return True
        if item.offset not in self.opened:
            return False
        near = [*self._view.before(item.offset, MOST_RANKS), *self._view.after(item.offset, MOST_RANKS)]
        self.opened -= {at for at in near if self._text(at)[1].text == item.line.text}
        return True

    def _join(self, found: list[Item], chunk: Iterable[int]) -> None:
        for offset in chunk:
            fold = self._folds.of(offset)
            if fold and fold.role == "frame" and fold.head not in self.opened and self._view.shows(fold.head):
                continue
            raw, line = self._text(offset)
            if raw.startswith(GAP):
                found.append(Item(offset, offset, raw, line, "gap"))
            elif fold and fold.role == "head":
                count = 0 if offset in self.opened else self._folds.frames(offset)
                found.append(Item(offset, offset, raw, line, "fold" if count else "line", count))
            elif found and offset not in self.opened and self._same(found[-1], line):
                before = found[-1]
                names = (*(before.names or (before.line.key,)), line.key)
                found[-1] = replace(before, last=offset, kind="ranks", count=len(names), names=names)
            else:
                found.append(Item(offset, offset, raw, line))

    def _same(self, item: Item, line: Line) -> bool:
        if item.kind not in ("line", "ranks") or item.offset in self.opened or not line.is_worker:
            return False
        known = item.names or (item.line.key,)
        return (
            item.line.is_worker
            and bool(line.text)
            and item.line.text == line.text
            and item.line.level == line.level
            and line.key not in known
            and len(known) < MOST_RANKS
        )

    def _text(self, offset: int) -> tuple[str, Line]:
        if offset in self._parsed:
            return self._parsed[offset]
        log = self._view.log
        raw = log.line_at(offset)
        made = (raw, parse(raw))
        if offset + len(raw) < log.settled:
            self._parsed[offset] = made
            if len(self._parsed) > _KEPT:
                self._parsed.popitem(last=False)
        return made


def clock_of(item: Item, came: float | None) -> str:
    """`HH:MM:SS` of an item: as its line says, else when it came here; blank when neither is known."""
    told = clock(item.raw)
    if told is not None:
        return told
    return time.strftime("%H:%M:%S", time.localtime(came)) if came is not None else " " * 8
