"""The lists that open over a log: presets, levels, processes, stages, and the noise that is hidden, with reasons.

j/k choose, Enter takes, q or Esc leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.strip import Strip

from screens.widgets.choice import Choice
from screens.widgets.lines import fit, line, wrap

WHY_ROWS = 2


@dataclass(frozen=True, slots=True)
class Entry:
    """One row: what it is called, a figure or a word, and why one would take it."""

    key: str
    name: str
    figure: str = ""
    why: str = ""


class _Rows(Choice):
    DEFAULT_CSS = "_Rows { height: 1fr; }"

    def __init__(self, title: str, entries: Sequence[Entry], nothing: str) -> None:
        super().__init__(title, id="panel-rows")
        self._entries = {entry.key: entry for entry in entries}
        self._nothing = nothing

    def keys(self) -> list[str]:
        return list(self._entries)

    def row(self, key: str, width: int, *, chosen: bool) -> Strip:
        entry = self._entries[key]
        name = min(24, max(len(item.name) for item in self._entries.values()))
        figure = max(len(item.figure) for item in self._entries.values())
        dots = self.glyphs.ellipsis
        rest = width - name - figure - 3
        return line(
            (fit(entry.name, name, ellipsis=dots), "bold" if chosen else ""), " ",
            (entry.figure.rjust(figure), "cyan"), "  ", (fit(entry.why, rest, ellipsis=dots).rstrip(), "dim"),
        )  # fmt: skip

    def rows(self, width: int, height: int) -> list[Strip]:
        """The list, and below it the whole reason of the chosen entry, which its row may have cut."""
        made = super().rows(width, max(2, height - WHY_ROWS))
        entry = self._entries.get(self.chosen)
        if entry is None or not entry.why:
            return made
        made += [line("")] * max(0, height - WHY_ROWS - len(made))
        return [*made, *(line((f"  {part}", "dim")) for part in wrap(entry.why, width - 2)[:WHY_ROWS])]

    def nothing(self) -> tuple[str, ...]:
        return (self._nothing,)


class Panel(ModalScreen[str]):
    """Dismisses with the key of the entry that was taken, or None."""

    AUTO_FOCUS = "#panel-rows"
    DEFAULT_CSS = """
    Panel { align: left bottom; background: transparent; }
    Panel > #panel { width: 100%; max-height: 70%; background: ansi_default; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,h", "leave", "leave", id="panel.leave")]

    def __init__(self, title: str, entries: Sequence[Entry], nothing: str) -> None:
        super().__init__()
        self._title_words, self._entries, self._nothing = title, tuple(entries), nothing

    def compose(self) -> ComposeResult:
        with Vertical(id="panel") as box:
            box.styles.height = max(1, len(self._entries)) + 1 + WHY_ROWS
            yield _Rows(self._title_words, self._entries, self._nothing)

    def on_choice_chosen(self, message: Choice.Chosen) -> None:
        self.dismiss(message.key)

    def action_leave(self) -> None:
        self.dismiss(None)
