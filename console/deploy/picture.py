"""Two pictures as SVG text, for a page that must stand alone: lines over time, and bars side by side. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 860, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 12, 18, 30
# Okabe and Ito's eight, told apart by people with any colour vision
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c8c00", "#555555")


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment that is named in the picture."""

    at: float
    text: str


def lines(
    series: Mapping[str, Sequence[tuple[float, float | None]]], *, title: str, unit: str, top: float | None = None,
    marks: Sequence[Mark] = (),
) -> str:  # fmt: skip
    """Each series as a line over seconds; None leaves a gap. Empty text when there is nothing to draw."""
    points = [(x, y) for row in series.values() for x, y in row if y is not None]
    if not points:
        return ""
    right = max(max(x for x, _ in points), *(mark.at for mark in marks), 1e-9) if marks else max(x for x, _ in points)
    high = _round_up(max(top or 0.0, *(y for _, y in points)))
    right = right or 1.0

    def x_of(value: float) -> float:
        return _LEFT + value / right * (WIDTH - _LEFT - _RIGHT)

    def y_of(value: float) -> float:
        return HEIGHT - _BOTTOM - value / high * (HEIGHT - _TOP - _BOTTOM)

    parts = [_open(title), *_grid(high, unit, y_of), *_time_axis(right, x_of)]
    if top:
        parts.append(_line(_LEFT, y_of(top), WIDTH - _RIGHT, y_of(top), "cap"))
    for index, mark in enumerate(mark for mark in marks if 0 <= mark.at <= right):
        x = x_of(mark.at)
        parts.append(_line(x, _TOP, x, HEIGHT - _BOTTOM, "mark"))
        parts.append(_text(x + 3, _TOP + 8 + 11 * (index % 3), mark.text, "start", "small"))
    for index, (name, row) in enumerate(series.items()):
        colour = COLOURS[index % len(COLOURS)]
        for piece in _pieces(row):
            path = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in piece)
            parts.append(
                f'<polyline fill="none" stroke="{colour}" points="{path}"><title>{escape(name)}</title></polyline>'
            )
    return "".join([*parts, "</svg>", _legend(list(series))])


def bars(groups: Sequence[str], series: Mapping[str, Sequence[float | None]], *, title: str, unit: str) -> str:
    """For each group one bar per series; None has no bar. Empty text when there is nothing to draw."""
    known = [value for row in series.values() for value in row if value is not None]
    if not known or not groups:
        return ""
    high = _round_up(max(known))
    slot = (WIDTH - _LEFT - _RIGHT) / len(groups)
    wide = min(60.0, slot * 0.8 / max(1, len(series)))

    def y_of(value: float) -> float:
        return HEIGHT - _BOTTOM - value / high * (HEIGHT - _TOP - _BOTTOM)

    parts = [_open(title), *_grid(high, unit, y_of)]
    for at, group in enumerate(groups):
        middle = _LEFT + slot * (at + 0.5)
        parts.append(_text(middle, HEIGHT - 10, group, "middle"))
        for index, (name, row) in enumerate(series.items()):
            value = row[at]
            if value is None:
                continue
            x, y = middle - wide * len(series) / 2 + wide * index, y_of(value)
            parts.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide - 2:.1f}" height="{HEIGHT - _BOTTOM - y:.1f}" '
                f'fill="{COLOURS[index % len(COLOURS)]}"><title>{escape(f"{name}, {group}: {value:,.1f} {unit}")}</title></rect>'
            )
            parts.append(_text(x + wide / 2, y - 3, f"{value:,.0f}", "middle", "small"))
    return "".join([*parts, "</svg>", _legend(list(series))])


def _pieces(row: Sequence[tuple[float, float | None]]) -> list[list[tuple[float, float]]]:
    pieces: list[list[tuple[float, float]]] = [[]]
    for x, y in row:
        if y is None:
            pieces.append([])
        else:
            pieces[-1].append((x, y))
    return [piece for piece in pieces if piece]


def _round_up(value: float) -> float:
    """The next of 1, 2, 2.5 or 5 times a power of ten."""
    if value <= 0:
        return 1.0
    power: float = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= value * (1 - 1e-9))


def _open(title: str) -> str:
    return f'<svg role="img" viewBox="0 0 {WIDTH} {HEIGHT}" aria-label="{escape(title)}"><title>{escape(title)}</title>'


def _grid(high: float, unit: str, y_of: Callable[[float], float]) -> list[str]:
    parts = []
    for step in range(5):
        value = high * step / 4
        y = y_of(value)
        parts.append(_line(_LEFT, y, WIDTH - _RIGHT, y, "grid"))
        parts.append(_text(_LEFT - 6, y + 4, f"{value:,.0f}", "end"))
    return [*parts, _text(_LEFT - 6, 10, unit, "end", "small")]


def _time_axis(right: float, x_of: Callable[[float], float]) -> list[str]:
    step = _round_up(right / 6)
    return [_text(x_of(step * at), HEIGHT - 10, f"{step * at:,.0f} s", "middle") for at in range(int(right / step) + 1)]


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, text: str, anchor: str, kind: str = "") -> str:
    mark = f' class="{kind}"' if kind else ""
    return f'<text{mark} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _legend(names: Sequence[str]) -> str:
    items = (
        f'<span><i style="background:{COLOURS[index % len(COLOURS)]}"></i>{escape(name)}</span>'
        for index, name in enumerate(names)
    )
    return f'<p class="legend">{"".join(items)}</p>'
