"""How an item of a log becomes rows: signs, time, process, text; wrapped or cut. Pure.

The sign before a line says its level, colour says it again. What a search found is shown reversed, what a filter asked for
underlined.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from rich.cells import cell_len, chop_cells
from textual.strip import Strip

from console.triage.prefix import LOUD
from screens.glyphs import Glyphs
from screens.widgets.lines import Part, line
from screens.widgets.log_items import Item, clock_of

WHO = 12
"""Columns of the process."""
NARROW = 60
"""Below this width the process goes into no column of its own."""
_EXCEPTION = re.compile(r"^(?:[A-Za-z_]\w*\.)*\w*(?:Error|Exception|Interrupt)\b")


@dataclass(frozen=True, slots=True)
class Look:
    """How lines are drawn. `form`: 0 with time and process, 1 without time, 2 as written. `left` is the first column shown."""

    width: int
    glyphs: Glyphs
    form: int = 0
    wrap: bool = False
    left: int = 0
    found: re.Pattern[str] | None = None
    asked: re.Pattern[str] | None = None


def draw(item: Item, look: Look, *, came: float | None, cursor: bool, marked: bool) -> list[Strip]:
    """The rows of one item."""
    sign, colour = _sign(item, look.glyphs)
    gutter: Part = (look.glyphs.cursor, "bold cyan") if cursor else ("*" if marked else " ", "bold cyan")
    head: list[Part] = [gutter, (sign, colour or "dim"), " " if look.width >= NARROW else ""]
    text = item.raw if look.form == 2 else item.line.text
    if look.form == 0 and item.kind != "gap":
        head.append((f"{clock_of(item, came)} ", "dim"))
    if look.form < 2 and item.kind != "gap" and look.width >= NARROW:
        head.append((_who(item, look.glyphs), "cyan"))
    text = text.expandtabs(8)
    if item.kind == "gap":
        text = item.raw
    tail: list[Part] = []
    if item.kind == "fold":
        tail = [(f" {look.glyphs.fold} {item.count} lines folded (enter)", "dim")]
    elif item.kind == "ranks" and (look.form == 2 or look.width < NARROW):
        tail = [(f" ({item.count} ranks said so)", "dim")]
    room = max(8, look.width - sum(_length(part) for part in head))
    if look.wrap:
        return _wrapped(head, text, tail, room, colour, look)
    body = line(*_marked(text, colour, look), *tail)
    if look.left:
        body = body.crop(min(look.left, body.cell_length), body.cell_length)
    if body.cell_length > room:
        body = Strip([*body.crop(0, room - 1), *line((look.glyphs.ellipsis, "dim"))])
    return [Strip([*line(*head), *body])]


def _wrapped(head: list[Part], text: str, tail: list[Part], room: int, colour: str, look: Look) -> list[Strip]:
    whole = _marked(text, colour, look)
    pieces = [text[at : at + room] for at in range(0, len(text), room)] if text.isascii() else chop_cells(text, room)
    strip, rows, at = line(*whole), [], 0
    blank = " " * sum(_length(part) for part in head)
    for place, piece in enumerate(pieces or [""]):
        size = cell_len(piece)
        rows.append(Strip([*line(*(head if place == 0 else [blank])), *strip.crop(at, at + size)]))
        at += size
    if tail:
        rows[-1] = Strip([*rows[-1], *line(*tail)])
    return rows


def _marked(text: str, colour: str, look: Look) -> list[Part]:
    """The text with what was searched and asked for made visible."""
    spans = [(found.start(), found.end(), "reverse") for found in look.found.finditer(text)] if look.found else []
    if look.asked and not spans:
        spans = [(found.start(), found.end(), "underline") for found in look.asked.finditer(text)]
    parts: list[Part] = []
    at = 0
    for begin, end, style in spans[:100]:
        if begin < at or begin == end:
            continue
        parts += [(text[at:begin], colour), (text[begin:end], f"{style} {colour}".strip())]
        at = end
    return [*parts, (text[at:], colour)]


def _sign(item: Item, glyphs: Glyphs) -> tuple[str, str]:
    if item.kind == "gap":
        return glyphs.warn, "bold yellow"
    level = item.line.level
    if level in LOUD or (level is None and _EXCEPTION.match(item.line.text)):
        return glyphs.fail, "red"
    return (glyphs.warn, "yellow") if level == "WARNING" else (" ", "")


def _who(item: Item, glyphs: Glyphs) -> str:
    name = item.who
    return f"{name[: WHO - 1] + glyphs.ellipsis if len(name) > WHO else name:<{WHO}} "


def _length(part: Part) -> int:
    return cell_len(part if isinstance(part, str) else part[0])
