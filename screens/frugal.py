"""Fewer bytes to the terminal: Textual 8.2 sends a changed row from the left edge of its widget to the last changed cell.

Over a slow link the left part is most of it: a clock at the end of the status line costs the whole line each second.
`install()` has such rows sent from the first changed cell. It changes how an update is written, never what is drawn, and
leaves Textual alone where its internals are not the known ones.
"""

from __future__ import annotations

from typing import Any

from rich.control import Control
from textual import _compositor


def install() -> bool:
    """True when updates are written the frugal way from now on."""
    update = getattr(_compositor, "ChopsUpdate", None)
    if update is None or not hasattr(update, "render_segments"):
        return False
    update.render_segments = _changed_cells
    return True


def _changed_cells(update: Any, console: Any) -> str:
    """The update as terminal sequences: for each span a move and the cells within it."""
    written: list[str] = []
    for y, x1, x2 in update.spans:
        for end, (x, strip) in zip(update.chop_ends[y], update.chops[y].items(), strict=False):
            if strip is None or x >= x2 or end <= x1:
                continue
            first, last = max(x, x1), min(end, x2)
            part = strip if (first, last) == (x, end) else strip.crop(first - x, last - x)
            written += [Control.move_to(first, y).segment.text, part.render(console)]
    return "".join(written)
