"""Which profile a node is to be watched and worked on with: every profile that can be found, beside what is known of it there.

Nothing is changed by choosing. The profile of the newest run on the node is chosen at first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.strip import Strip

from console.deploy.store import RunRow
from console.profile.load import Listed
from console.text import clean
from screens.runs import outcome
from screens.source import Moment
from screens.widgets.choice import Choice
from screens.widgets.lines import Part, fit, line
from screens.widgets.sections import age_words

LIST_ID = "profiles-list"
NAME = 22
MOST = 14
"""Rows at once."""


class ProfileList(Choice):
    """The table. Key of a row is the profile's name."""

    DEFAULT_CSS = "ProfileList { height: auto; }"

    def __init__(
        self, node: str, serves: str, listed: Sequence[Listed], past: Mapping[str, RunRow], moment: Moment
    ) -> None:
        super().__init__(f"Profile for {clean(node)}", id=LIST_ID)
        self._serves = clean(serves)
        self._listed = {item.name: item for item in listed}
        self._past, self._moment = past, moment
        self.styles.height = min(MOST, len(listed) + 2)

    def heading(self) -> tuple[Part, ...]:
        return ((f"serves there: {self._serves}", "dim"),)

    def keys(self) -> list[str]:
        return list(self._listed)

    def columns(self, width: int) -> str:
        return f"{'profile':<{NAME}} {'model':<22} last run there"

    def nothing(self) -> tuple[str, ...]:
        return ("There is no profile.", "Write one, and name its folder with --profiles DIR.")

    def row(self, key: str, width: int, *, chosen: bool) -> Strip:
        item, ellipsis = self._listed[key], self.glyphs.ellipsis
        name: Part = (fit(clean(key), NAME, ellipsis=ellipsis), "bold reverse" if chosen else "bold")
        if item.profile is None:
            return line(name, " ", (f"{self.glyphs.fail} has problems: relaunch profile check", "bold red"))
        model = fit(clean(item.profile.model.served_name), 22, ellipsis=ellipsis)
        return line(name, f" {model} ", *self._last(key))

    def _last(self, key: str) -> list[Part]:
        row = self._past.get(key)
        if row is None:
            return [("never there", "dim")]
        sign, words, look = outcome(row, self.glyphs, running=False)
        return [(sign, look), f" {row.verb} {words}, {age_words(self._moment.wall - row.started)} ago"]


class ProfileChoice(ModalScreen[str]):
    """Dismisses with the profile's name, or None. `serves` is what is known to serve on the node, in words."""

    AUTO_FOCUS = f"#{LIST_ID}"
    DEFAULT_CSS = """
    ProfileChoice { align: center middle; background: ansi_default; }
    ProfileChoice > Vertical {
        width: 90; max-width: 96%; height: auto; border: round ansi_default; padding: 0 1; background: ansi_default;
    }
    .-ascii ProfileChoice > Vertical { border: ascii ansi_default; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "leave", "cancel", id="profiles.cancel")]

    def __init__(
        self,
        node: str,
        serves: str,
        listed: Sequence[Listed],
        past: Mapping[str, RunRow],
        *,
        first: str,
        moment: Moment,
    ) -> None:
        super().__init__()
        self._list = ProfileList(node, serves, listed, past, moment)
        self._list.start_at(first)

    def compose(self) -> ComposeResult:
        with Vertical():
            yield self._list

    def on_choice_chosen(self, event: Choice.Chosen) -> None:
        self.dismiss(event.key)

    def action_leave(self) -> None:
        self.dismiss(None)
