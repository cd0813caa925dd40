"""Saved filters by keys: @ lists them, Enter loads one, s saves the present one under a name, X deletes one of the operator's.

The file is the one that `relaunch logs --filter @name` reads. What is wrong with it, or with a name, is said; then nothing
is changed.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType

from console.errors import RelaunchError
from console.logs.filters import Filter, presets
from console.logs.saved import delete, owned, save, wrong_name
from console.settings import own_presets
from screens.dialogs import Question
from screens.filter_bar import FilterBar
from screens.log_panels import Entry, Panel
from screens.widgets.choice import Choice

if TYPE_CHECKING:
    from screens.widgets.log_pane import LogPane

NONE, SAVE, DROP = "\0none", "\0save", "\0drop "
"""What the panel answers beside the name of a preset: no filter, save the present one, delete the one named behind it."""


class PresetPanel(Panel):
    """The list of saved filters."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "save", "save", id="presets.save", tooltip="save the present filter under a name"),
        Binding("X", "drop", "delete", id="presets.delete", tooltip="delete the chosen one, if it is yours"),
    ]

    def action_save(self) -> None:
        self.dismiss(SAVE)

    def action_drop(self) -> None:
        self.dismiss(DROP + self.query_one(Choice).chosen)


async def preset_panel(pane: LogPane) -> None:
    """Choose, save or delete a saved filter."""
    own = own_presets()
    found, mine = presets(own), owned(own)
    entries = [Entry(NONE, "none", "", "everything but noise")]
    for name, preset in found.items():
        why = " · ".join(part for part in ("yours" if name in mine else "", preset.reason) if part)
        entries.append(Entry(name, name, str(preset) if len(str(preset)) < 40 else "", why))

    def chosen(key: str | None) -> None:
        if key == SAVE:
            pane.begin("preset", save_preset)
        elif key is not None and key.startswith(DROP):
            _ask_delete(pane, key.removeprefix(DROP), mine)
        elif key is not None:
            pane.want(Filter() if key == NONE else found[key])

    title = f"Presets; s saves the present filter, X deletes; yours: {_short(own)}"
    pane.app.push_screen(PresetPanel(title, entries, "There is no preset."), chosen)


async def save_preset(pane: LogPane) -> None:
    """Ask for a name, and keep the present filter under it."""
    own, wanted = own_presets(), pane.wanted
    if wanted == Filter():
        pane.relaunch.say("there is no filter to save; / makes one", "warning")
        return
    owned(own)  # a file that cannot be read is said before a name is asked for

    def named(name: str | None) -> None:
        if name:
            pane.begin("preset", lambda pane: _save(pane, name.removeprefix("@"), wanted))

    def wrong(text: str) -> str:
        try:
            return wrong_name(own, text.removeprefix("@"))
        except RelaunchError as error:
            return error.message

    pane.app.push_screen(FilterBar("save", "", wrong), named)


async def _save(pane: LogPane, name: str, wanted: Filter) -> None:
    own = own_presets()
    kept = replace(wanted, name=name, reason="")
    save(own, name, kept)
    if pane.wanted == wanted:
        pane.want(kept)
    pane.relaunch.say(f"@{name} is in {_short(own)}")


def _ask_delete(pane: LogPane, name: str, mine: frozenset[str]) -> None:
    if name not in mine:
        what = f"@{name} comes with Relaunch" if name != NONE else "that is no saved filter"
        pane.relaunch.say(f"{what}; X deletes yours", "warning")
        return

    def answered(sure: bool | None) -> None:
        if sure:
            pane.begin("preset", lambda pane: _delete(pane, name))

    pane.app.push_screen(
        Question(f"Delete @{name}", f"It goes out of {_short(own_presets())}.", ("Cancel", "Delete")), answered
    )


async def _delete(pane: LogPane, name: str) -> None:
    delete(own_presets(), name)
    pane.relaunch.say(f"@{name} is deleted")


def _short(path: Path) -> str:
    """A path as a shell would take it, `~` for the home."""
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)
