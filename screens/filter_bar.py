"""The one-line bar of the log: a filter, a search, a path or a name is typed; what is wrong with it is said beside it.

Enter takes it, F2 takes a filter and asks for a name to save it under, Esc leaves it, Tab completes a preset's name, arrows bring back what was typed before. The bar goes only when
what was typed can be taken; until then the old filter holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.strip import Strip
from textual.widgets import Input

from screens.widgets.lines import Pane, line

HINTS = {
    "filter": "words include, !word excludes, /regex/, @preset; empty: all; F2 saves",
    "search": "plain text or /regex/; n next, N previous; empty ends the search",
    "save": "a name for the present filter: @name loads it, here and in relaunch logs --filter",
    "write": "the shown lines, or the marked ones, go into this file",
}
PAST: dict[str, list[str]] = {}
"""What was typed before, by kind, newest first; for as long as the console runs."""


class Hint(Pane):
    """What may be typed, or what is wrong with what was typed."""

    DEFAULT_CSS = "Hint { height: 1; }"

    def __init__(self, kind: str) -> None:
        super().__init__(id="hint")
        self._kind = kind
        self.error = ""

    def rows(self, width: int, height: int) -> list[Strip]:
        if self.error:
            return [line((f" {self.glyphs.fail} {self.error}", "bold red"))]
        return [line((f" {self._kind}", "bold cyan"), (f"  {HINTS[self._kind]}", "dim"))]


class FilterBar(ModalScreen[str]):
    """`check` says what is wrong with a text, or nothing. Dismisses with the text, or None when it is left."""

    AUTO_FOCUS = "Input"
    DEFAULT_CSS = """
    FilterBar { align: left bottom; background: transparent; }
    FilterBar > #filter-bar { height: 2; width: 100%; background: ansi_default; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "leave", id="bar.leave"),
        Binding("tab", "complete", "complete", id="bar.complete", show=False, priority=True),
        Binding("f2", "keep", "save", id="bar.save", show=False, priority=True),
        Binding("up", "recall(1)", "before", id="bar.older", show=False, priority=True),
        Binding("down", "recall(-1)", "next", id="bar.newer", show=False, priority=True),
    ]

    def __init__(self, kind: str, text: str, check: Callable[[str], str], words: Sequence[str] = ()) -> None:
        super().__init__()
        self._kind, self._text, self._check, self._words = kind, text, check, tuple(words)
        self._place = 0
        self.keep = False
        """The operator wants the filter saved."""

    def compose(self) -> ComposeResult:
        with Vertical(id="filter-bar"):
            yield Hint(self._kind)
            field = Input(self._text, id="typed", compact=True, select_on_focus=False)
            field.cursor_blink = False
            yield field

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self._take()

    def action_keep(self) -> None:
        self.keep = self._kind == "filter"
        if self.keep:
            self._take()

    def _take(self) -> None:
        text = self.query_one(Input).value.strip()
        wrong = self._check(text)
        if wrong:
            hint = self.query_one(Hint)
            hint.error = wrong
            hint.redraw()
            self.keep = False
            return
        past = PAST.setdefault(self._kind, [])
        if text and text not in past[:1]:
            past.insert(0, text)
        self.dismiss(text)

    def action_leave(self) -> None:
        self.dismiss(None)

    def action_complete(self) -> None:
        field = self.query_one(Input)
        before, _, last = field.value.rpartition(" ")
        fits = [word for word in self._words if last and word.startswith(last)]
        if fits:
            self._put(f"{before} {fits[0]}" if before else fits[0])

    def action_recall(self, step: int) -> None:
        past = PAST.get(self._kind, [])
        self._place = max(0, min(len(past), self._place + step))
        self._put(past[self._place - 1] if self._place else self._text)

    def _put(self, text: str) -> None:
        field = self.query_one(Input)
        field.value = text
        field.cursor_position = len(text)
