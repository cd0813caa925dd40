"""A table of which one row is chosen: j/k move, Enter opens. The choice stays with its key while rows come and go."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.message import Message
from textual.strip import Strip

from screens.widgets.lines import Pane, Part, line, wrap
from screens.widgets.sections import empty


class Choice(Pane):
    """Subclasses say what the rows are. The first cell of every row is the cursor's."""

    can_focus = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j,down", "by(1)", "down", id="choice.down", show=False),
        Binding("k,up", "by(-1)", "up", id="choice.up", show=False),
        Binding("space,pagedown", "page(1)", "page down", id="choice.page-down", show=False),
        Binding("pageup", "page(-1)", "page up", id="choice.page-up", show=False),
        Binding("g,home", "to(0)", "first row", id="choice.top", show=False),
        Binding("G,end", "to(1)", "last row", id="choice.bottom", show=False),
        Binding("enter", "choose", "open", id="choice.open"),
    ]

    class Chosen(Message):
        """A row was opened."""

        def __init__(self, key: str) -> None:
            super().__init__()
            self.key = key

    class Moved(Message):
        """Another row is chosen."""

        def __init__(self, key: str) -> None:
            super().__init__()
            self.key = key

    def __init__(self, name: str, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._heading = name
        self._at = 0
        self._key = ""
        self._first = 0

    @property
    def chosen(self) -> str:
        """Key of the chosen row, empty while there is none."""
        keys = self.keys()
        return keys[self._place(keys)] if keys else ""

    def start_at(self, key: str) -> None:
        """Choose this row before anyone has moved; nothing when there is no such row yet."""
        if key and not self._key:
            self._key = key

    # -- what subclasses say --------------------------------------------------------------------------------------

    def keys(self) -> list[str]:
        """The keys of all rows, in order."""
        raise NotImplementedError

    def row(self, key: str, width: int, *, chosen: bool) -> Strip:
        """One row of `width` cells at most, without its cursor."""
        raise NotImplementedError

    def columns(self, width: int) -> str:
        """The names of the columns, or nothing."""
        return ""

    def heading(self) -> tuple[Part, ...]:
        """What stands in the title beside the name."""
        return ()

    def trouble(self) -> str:
        """What is wrong with the list as a whole, said above it; empty when nothing is."""
        return ""

    def nothing(self) -> tuple[str, ...]:
        """What is said when there are no rows."""
        return ()

    # -- drawing and moving ---------------------------------------------------------------------------------------

    def rows(self, width: int, height: int) -> list[Strip]:
        keys = self.keys()
        wrong = [
            line((f" {part}", "bold red")) for part in wrap(f"{self.glyphs.fail} {self.trouble()}", max(8, width - 2))
        ]
        wrong = wrong[:4] if self.trouble() else []
        if not keys:
            return [self.title(width, self._heading, *self.heading()), *wrong, *empty(self.nothing(), width)]
        place = self._place(keys)
        named = self.columns(width - 2)
        room = max(1, height - 1 - bool(named) - len(wrong))
        self._first = max(min(self._first, place), place - room + 1, 0)
        self._first = min(self._first, max(0, len(keys) - room))
        shown = keys[self._first : self._first + room]
        where = "" if len(keys) <= room else f"{place + 1} of {len(keys)}"
        made = [self.title(width, self._heading, *self.heading(), (where, "dim")), *wrong]
        if named:
            made.append(line((f"  {named}", "dim")))
        for key in shown:
            here = key == keys[place]
            cursor: Part = (f"{self.glyphs.cursor} ", "bold cyan") if here else "  "
            made.append(Strip([*line(cursor), *self.row(key, width - 2, chosen=here)]))
        return made

    def _place(self, keys: list[str]) -> int:
        """Where the chosen key stands now; the nearest place when it is gone."""
        if self._key in keys:
            self._at = keys.index(self._key)
        else:
            self._at = max(0, min(self._at, len(keys) - 1))
            self._key = keys[self._at] if keys else ""
        return self._at

    def action_by(self, rows: int) -> None:
        self._go(self._at + rows)

    def action_page(self, pages: int) -> None:
        self._go(self._at + pages * max(1, self.size.height - 3))

    def action_to(self, end: int) -> None:
        self._go(len(self.keys()) if end else 0)

    def _go(self, place: int) -> None:
        keys = self.keys()
        if not keys:
            return
        self._at = max(0, min(place, len(keys) - 1))
        self._key = keys[self._at]
        self.redraw()
        self.post_message(self.Moved(self._key))

    def action_choose(self) -> None:
        if self.chosen:
            self.post_message(self.Chosen(self.chosen))
