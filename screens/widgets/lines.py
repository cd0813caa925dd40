"""Rows of text as a widget: the base of every pane. Only cells that changed are sent to the terminal again.

`line("plain", ("red words", "red"))` makes a row; `Pane.rows(width, height)` is what a pane draws, and `redraw()` compares
it with what stands there. No markup is ever parsed. Styles are Rich style strings of the 16 named colours.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.strip import Strip
from textual.widget import Widget

from screens.glyphs import Glyphs, plain

if TYPE_CHECKING:
    from screens.app import ConsoleApp

Part: TypeAlias = str | tuple[str, str]


@lru_cache(256)
def style(text: str) -> Style:
    return Style.parse(text)


def line(*parts: Part) -> Strip:
    """One row of text and (text, style) parts. Tabs become one space; line ends must not stand in it."""
    segments = []
    for part in parts:
        text, look = (part, "") if isinstance(part, str) else part
        if text:
            text = text.replace("\t", " ") if "\t" in text else text
            segments.append(Segment(text, style(look) if look else None))
    return Strip(segments)


def fit(text: str, width: int, *, ellipsis: str = "…") -> str:
    """`text` in exactly `width` characters: padded, or cut with an ellipsis."""
    if width <= 0:
        return ""
    return text.ljust(width) if len(text) <= width else text[: width - 1] + ellipsis


def wrap(text: str, width: int) -> list[str]:
    """`text` broken at spaces into lines of `width` at most; what is longer is broken anywhere."""
    lines: list[str] = []
    for paragraph in text.splitlines() or [""]:
        rest = paragraph.rstrip()
        while len(rest) > max(1, width):
            cut = rest.rfind(" ", 1, width + 1)
            cut = cut if cut > width // 3 else max(1, width)
            lines.append(rest[:cut].rstrip())
            rest = rest[cut:].lstrip()
        lines.append(rest)
    return lines


class Lines(Widget):
    """Rows that are put there with `put`."""

    DEFAULT_CSS = "Lines { height: 1fr; width: 1fr; }"

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes, markup=False)
        self._rows: list[Strip] = []

    @property
    def relaunch(self) -> ConsoleApp:
        """The app, typed."""
        return self.app  # type: ignore[return-value]

    @property
    def glyphs(self) -> Glyphs:
        return self.relaunch.glyphs

    def put(self, rows: Sequence[Strip]) -> None:
        """Show `rows`; refreshes only the cells that differ from what is shown."""
        old, new = self._rows, list(rows)
        self._rows = new
        if len(old) != len(new) and self.styles.is_auto_height:
            self.refresh(layout=True)
            return
        blank = Strip([])
        dirty = []
        for y in range(max(len(old), len(new))):
            before = old[y] if y < len(old) else blank
            after = new[y] if y < len(new) else blank
            span = _difference(before, after)
            if span is not None:
                dirty.append(Region(span[0], y, span[1] - span[0], 1))
        if dirty:
            self.refresh(*dirty)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self._rows)

    def render_line(self, y: int) -> Strip:
        base = self.rich_style
        if y >= len(self._rows):
            return Strip.blank(self.size.width, base)
        row = self._rows[y].adjust_cell_length(self.size.width)
        if self.glyphs.ascii:
            row = Strip([Segment(plain(text, self.glyphs), look) for text, look, _ in row]).adjust_cell_length(
                self.size.width
            )
        return row.apply_style(base)

    def text(self) -> str:
        """What is shown, as plain lines."""
        return "\n".join(row.text.rstrip() for row in self._rows)


class Pane(Lines):
    """Rows that are made anew from what the pane was told, at its present size."""

    def rows(self, width: int, height: int) -> list[Strip]:
        """What to draw in `width` by `height` cells."""
        raise NotImplementedError

    def redraw(self) -> None:
        """Draw again; cells that are the same are not sent again."""
        if self.is_mounted and self.size.width:
            self.put(self.rows(self.size.width, self.size.height))

    def on_mount(self) -> None:
        self.redraw()

    def on_resize(self) -> None:
        self.redraw()

    def on_focus(self) -> None:
        self.redraw()

    def on_blur(self) -> None:
        self.redraw()

    def title(self, width: int, words: str, *rest: Part) -> Strip:
        """The pane's first row: a rule with its name and what goes for the whole pane; marked when it has the keys."""
        glyphs = self.glyphs
        rule = glyphs.rule
        mark: Part = (glyphs.focus, "bold cyan") if self.has_focus else (rule, "dim")
        name: Part = (f" {words} ", "bold cyan" if self.has_focus else "bold")
        parts: list[Part] = [mark, name]
        used = len(mark[0]) + len(name[0])
        for part in rest:
            text, look = (part, "") if isinstance(part, str) else part
            if text and used + len(text) + 3 <= width:  # what does not fit is left out whole, the first words stay
                parts += [(rule, "dim"), (f" {text} ", look)]
                used += len(text) + 3
        return line(*parts, (rule * max(0, width - used), "dim"))


class Pager(Pane):
    """A pane that scrolls over more rows than fit. Its title says where one is."""

    can_focus = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j,down", "by(1)", "down", id="pager.down", show=False),
        Binding("k,up", "by(-1)", "up", id="pager.up", show=False),
        Binding("space,pagedown", "page(1)", "page down", id="pager.page-down", show=False),
        Binding("pageup", "page(-1)", "page up", id="pager.page-up", show=False),
        Binding("g,home", "to(0)", "first line", id="pager.top", show=False),
        Binding("G,end", "to(1)", "last line", id="pager.bottom", show=False),
    ]

    def __init__(self, name: str, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._heading = name
        self._first = 0
        self._count = 0

    def heading(self) -> tuple[Part, ...]:
        """What stands in the title beside the name."""
        return ()

    def body(self, width: int) -> list[Strip]:
        """All rows, whatever their number."""
        raise NotImplementedError

    def rows(self, width: int, height: int) -> list[Strip]:
        body = self.body(width)
        room = max(1, height - 1)
        self._count = len(body)
        self._first = max(0, min(self._first, len(body) - room))
        shown = body[self._first : self._first + room]
        where = "" if len(body) <= room else f"{self._first + 1}-{self._first + len(shown)} of {len(body)}"
        return [self.title(width, self._heading, *self.heading(), (where, "dim")), *shown]

    def action_by(self, rows: int) -> None:
        self._first = max(0, self._first + rows)
        self.redraw()

    def action_page(self, pages: int) -> None:
        self.action_by(pages * max(1, self.size.height - 2))

    def action_to(self, end: int) -> None:
        self._first = self._count if end else 0
        self.redraw()


class Note(Pane):
    """A pane of rows that are given once."""

    def __init__(self, rows: Iterable[Strip], *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._given = list(rows)

    def rows(self, width: int, height: int) -> list[Strip]:
        return self._given


def _difference(before: Strip, after: Strip) -> tuple[int, int] | None:
    """First and last-plus-one cell in which two rows differ; None when they are the same."""
    if before == after:
        return None
    old, new = _cells(before), _cells(after)
    if len(old) != before.cell_length or len(new) != after.cell_length:
        return (0, max(before.cell_length, after.cell_length))  # wide characters: cells and characters do not pair up
    length = max(len(old), len(new))
    old += [(" ", None)] * (length - len(old))
    new += [(" ", None)] * (length - len(new))
    changed = [place for place, pair in enumerate(zip(old, new, strict=True)) if pair[0] != pair[1]]
    return (changed[0], changed[-1] + 1) if changed else None


def _cells(row: Strip) -> list[tuple[str, Style | None]]:
    return [(char, look) for text, look, _ in row for char in text]
