"""What every screen is: a status line, a body, a line of keys; shown glances on the app's one timer.

A screen awaits no network. `show(glance, moment)` is called when it comes up and whenever what is known moved, at 4 Hz at
most; it hands the glance to its panes, which repaint what changed. Actions that take time are started through the app.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen

from console.live import Glance
from screens.glyphs import Glyphs
from screens.source import Moment, Source
from screens.status import KeyLine, StatusLine

if TYPE_CHECKING:
    from screens.app import ConsoleApp

STATUS_ID = "status"
KEYS_ID = "keys"


class ConsoleScreen(Screen[None]):
    """Base of the full screens. Subclasses set `WORD` and write `body` and `show`."""

    WORD: ClassVar[str] = ""
    """What the breadcrumb calls this screen."""
    FIRST: ClassVar[tuple[str, ...]] = ()
    """Binding ids whose keys are named first at the bottom."""
    AUTO_FOCUS = "*"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,h,escape", "back", "back", id="back"),
    ]

    def __init__(self, source: Source) -> None:
        super().__init__()
        self.source = source

    @property
    def relaunch(self) -> ConsoleApp:
        """The app, typed."""
        return self.app  # type: ignore[return-value]

    @property
    def glyphs(self) -> Glyphs:
        return self.relaunch.glyphs

    def compose(self) -> ComposeResult:
        yield StatusLine(self.WORD, id=STATUS_ID)
        yield from self.body()
        yield KeyLine(self.FIRST, id=KEYS_ID)

    def body(self) -> ComposeResult:
        """The widgets between the status line and the keys."""
        raise NotImplementedError

    def show(self, glance: Glance, moment: Moment) -> None:
        """Take over what is known now. Must return at once."""
        raise NotImplementedError

    def tick(self, glance: Glance, moment: Moment) -> None:
        """One turn of the app's timer: chrome first, so that it stands even when the body fails."""
        self.query_one(StatusLine).show(glance, moment)
        self.show(glance, moment)
        self.query_one(KeyLine).redraw()

    def on_screen_resume(self) -> None:
        self.relaunch.tick(again=True)

    def action_back(self) -> None:
        self.relaunch.back()
