"""The log pane of the main screen: `screens.widgets.log_pane.LogPane`, or the spool's plain tail while that is missing."""

from __future__ import annotations

from importlib import import_module

from textual.strip import Strip
from textual.widget import Widget

from console.live import Glance
from screens.source import Moment, Source
from screens.widgets.lines import Pane, line


def log_pane(source: Source, *, id: str) -> Widget:
    """A widget over the source's spool."""
    try:
        made: Widget = import_module("screens.widgets.log_pane").LogPane(source, id=id)
    except ImportError:
        return Tail(source, id=id)
    return made


class Tail(Pane):
    """The last lines of the spool."""

    can_focus = True

    def __init__(self, source: Source, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._source = source

    def show(self, glance: Glance, moment: Moment) -> None:
        self.redraw()

    def rows(self, width: int, height: int) -> list[Strip]:
        spool = self._source.spool
        lines = spool.lines(len(spool) - max(0, height - 1), len(spool))
        return [self.title(width, "Log"), *(line(text) for text in lines)]
