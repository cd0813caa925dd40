"""Bars, sparklines and shares as text, in the signs of the terminal. Pure.

Unknown is drawn as unknown: a bar of `?`, never an empty one.
"""

from __future__ import annotations

from collections.abc import Sequence

from screens.glyphs import Glyphs
from screens.widgets.lines import Part

Band = tuple[float, str, str]
"""A part of a bar: how much, its sign, its colour."""


def progress_bar(glyphs: Glyphs, done: float | None, total: float | None, width: int) -> str:
    """`████░░░░`; `????` where the whole or the part is unknown."""
    if done is None or not total:
        return glyphs.unknown * width
    full = int(min(1.0, max(0.0, done / total)) * width)
    return glyphs.full * full + glyphs.rest * (width - full)


def stacked(glyphs: Glyphs, bands: Sequence[Band], total: float | None, width: int) -> list[Part]:
    """A bar of several bands over free room. A band that holds anything gets a cell; `?` where the total is unknown."""
    if not total:
        return [(glyphs.unknown * width, "dim")]
    parts: list[Part] = []
    used = 0
    for amount, sign, look in bands:
        cells = min(width - used, max(1, round(amount / total * width))) if amount > total / 1000 else 0
        if cells:
            parts.append((sign * cells, look))
            used += cells
    return [*parts, (glyphs.free * (width - used), "dim")]


def sparkline(glyphs: Glyphs, values: Sequence[float | None], top: float | None, width: int) -> str:
    """The last `width` values between 0 and `top`, the newest at the right; a gap where one is unknown."""
    if not top or width <= 0:
        return " " * max(0, width)
    shown = values[-width:]
    return "".join(" " if value is None else level(glyphs, value, top) for value in shown).rjust(width)


def level(glyphs: Glyphs, value: float | None, top: float | None) -> str:
    """One value as one sign of rising height; `?` when it is unknown."""
    if value is None or not top:
        return glyphs.unknown
    steps = len(glyphs.spark)
    return glyphs.spark[min(steps - 1, int(min(1.0, max(0.0, value / top)) * steps))]


def number(value: float | None, form: str = "{:.0f}", *, unknown: str = "?") -> str:
    """A number in `form`, or `?`."""
    return unknown if value is None else form.format(value)
