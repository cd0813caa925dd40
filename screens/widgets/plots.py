"""Values by load as bars: what is now against what was, in eighths of a cell where the terminal has them. Pure.

A bar is full up to its value; a spread goes on in a lighter sign from the median to the 99th percentile. A mark stands
where the last good release was, so that better and worse are seen without reading a number. Unknown has no bar: `?`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual.strip import Strip

from screens.glyphs import Glyphs
from screens.widgets.lines import Part, line

EIGHTHS = " ▏▎▍▌▋▊▉"


@dataclass(frozen=True, slots=True)
class Bar:
    """One load. `value` is drawn full, on to `upper` in a lighter sign; `before` is the mark."""

    label: str
    value: float | None
    upper: float | None = None
    before: float | None = None


def top_of(bars: Sequence[Bar]) -> float:
    """The largest number in any of the bars; 1 when there is none."""
    known = [number for bar in bars for number in (bar.value, bar.upper, bar.before) if number is not None]
    return max(known, default=0.0) or 1.0


def plot(
    glyphs: Glyphs, title: str, bars: Sequence[Bar], width: int, *, form: str = "{:,.0f}", look: str = "green"
) -> list[Strip]:
    """The title and a row for each bar, `width` cells in all."""
    top = top_of(bars)
    label = max((len(bar.label) for bar in bars), default=0) + 1
    numbers = [_number(bar, form) for bar in bars]
    tail = max((len(text) for text in numbers), default=0) + 1
    room = max(4, width - label - tail - 2)
    rows = [line((f" {title}", "bold"))]
    for bar, number in zip(bars, numbers, strict=True):
        parts: list[Part] = [
            (f" {bar.label:>{label - 1}} ", ""),
            *_cells(glyphs, bar, top, room, look),
            (f"{number:>{tail}}", ""),
        ]
        rows.append(line(*parts))
    return rows


def _number(bar: Bar, form: str) -> str:
    value = "?" if bar.value is None else form.format(bar.value)
    return value if bar.upper is None else f"{value} {form.format(bar.upper)}"


def _cells(glyphs: Glyphs, bar: Bar, top: float, room: int, look: str) -> list[Part]:
    """The bar's cells with the mark put over them."""
    if bar.value is None:
        signs, looks = [glyphs.unknown, *[" "] * (room - 1)], ["dim"] * room
    else:
        full = bar.value / top * room
        signs = [glyphs.full] * int(full)
        looks = [look] * len(signs)
        part = "" if glyphs.ascii else EIGHTHS[int((full - int(full)) * 8)].strip()
        if part:
            signs.append(part)
            looks.append(look)
        if bar.upper is not None:
            more = max(0, round(bar.upper / top * room) - len(signs))
            signs += [glyphs.rest] * more
            looks += [look] * more
        signs = (signs + [" "] * room)[:room]
        looks = (looks + [""] * room)[:room]
    if bar.before is not None:
        place = min(room - 1, max(0, round(bar.before / top * room) - 1))
        signs[place], looks[place] = glyphs.thumb if not glyphs.ascii else "|", "bold yellow"
    return _joined(signs, looks)


def _joined(signs: Sequence[str], looks: Sequence[str]) -> list[Part]:
    parts: list[tuple[str, str]] = []
    for sign, look in zip(signs, looks, strict=True):
        if parts and parts[-1][1] == look:
            parts[-1] = (parts[-1][0] + sign, look)
        else:
            parts.append((sign, look))
    return list(parts)
