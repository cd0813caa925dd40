"""The log over the whole screen; also the viewer of a log file, without any node."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from console.live import Glance
from screens.base import ConsoleScreen
from screens.log_file import FileSource
from screens.source import Moment, Source
from screens.widgets.log_pane import LogPane

PANE_ID = "log"


class LogScreen(ConsoleScreen):
    """One log pane with all the room there is."""

    WORD = "log"
    FIRST = ("log.filter", "log.search", "log.noise", "log.level", "log.launch", "log.follow", "log.yank", "log.pager")
    PANES: ClassVar[tuple[type, ...]] = (LogPane,)
    AUTO_FOCUS = f"#{PANE_ID}"
    # h moves to the left in a log, so it does not go back from here
    BINDINGS: ClassVar[list[BindingType]] = [Binding("q,escape", "back", "back", id="back")]

    def __init__(self, source: Source, path: Path | None = None) -> None:
        """With `path` the file of that name instead of the source's log. Raises UsageError when it cannot be read."""
        self._file = None if path is None else FileSource(path, source.store)
        super().__init__(self._file or source)
        self._pane = LogPane(self.source, id=PANE_ID)

    @property
    def pane(self) -> LogPane:
        return self._pane

    def body(self) -> ComposeResult:
        yield self._pane

    def show(self, glance: Glance, moment: Moment) -> None:
        self._pane.show(glance if self._file is None else self._file.glance(), moment)

    def on_unmount(self) -> None:
        if self._file is not None:
            self._file.close()
