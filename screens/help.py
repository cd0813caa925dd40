"""Help: the keys that are live on the screen below, by pane, and every command; made from the bindings, never by hand."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.screen import Screen
from textual.strip import Strip
from textual.widget import Widget

from console.live import Glance
from screens.base import ConsoleScreen
from screens.command_line import commands
from screens.keys import shown
from screens.source import Moment, Source
from screens.widgets.lines import Pager, fit, line

FILE = "$XDG_CONFIG_HOME/relaunch/keys.yaml"


class HelpPane(Pager):
    """All keys and commands."""

    def __init__(self, entries: list[tuple[str, str, str, str]]) -> None:
        super().__init__("Keys", id="help")
        self._entries = entries

    def body(self, width: int) -> list[Strip]:
        rows: list[Strip] = []
        group = None
        for place, keys, words, name in self._entries:
            if place != group:
                rows += [line("")] if rows else []
                rows.append(line((f" {place}", "bold cyan")))
                group = place
            room = max(10, width - 20 - 26)
            rows.append(
                line(
                    "   ",
                    (fit(keys, 14), "bold"),
                    " ",
                    fit(words, room, ellipsis=self.glyphs.ellipsis),
                    " ",
                    (name, "dim"),
                )
            )
        rows += [line(""), line((" Commands, after :", "bold cyan"))]
        rows += [
            line("   ", (fit(name, 16), "bold"), " ", words[: max(0, width - 22)]) for name, words in commands().items()
        ]
        rows += [
            line(""),
            line((f" The words at the right are ids: {FILE} gives them other keys, as `id: key`.", "dim")),
        ]
        return rows


class HelpScreen(ConsoleScreen):
    """Help over the screen that it was asked on."""

    WORD = "help"
    PANES: ClassVar[tuple[type, ...]] = (HelpPane,)

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self._pane: HelpPane | None = None

    def body(self) -> ComposeResult:
        stack = self.app.screen_stack
        below = stack[-2] if len(stack) > 1 and stack[-1] is self else stack[-1]
        self._pane = HelpPane(entries(below))
        yield self._pane

    def show(self, glance: Glance, moment: Moment) -> None:
        """Keys do not change while help is up."""


def entries(screen: Screen[object]) -> list[tuple[str, str, str, str]]:
    """(place, keys, words, id) of every binding with an id on a screen, its panes first."""
    found: dict[tuple[str, str], list[str]] = {}
    words: dict[tuple[str, str], str] = {}
    nodes = [*(widget for widget in screen.walk_children(Widget) if widget.can_focus), screen, screen.app]
    for node in nodes:
        place = _place(node)
        bindings = node._bindings.copy()
        bindings.apply_keymap(screen.app._keymap)
        for key, binding in bindings:
            if binding.id and binding.description:
                mark = (place, binding.id)
                found.setdefault(mark, []).append(shown(key))
                words.setdefault(mark, binding.tooltip or binding.description)
    return [(place, " ".join(keys), words[(place, name)], name) for (place, name), keys in found.items()]


def _place(node: object) -> str:
    names = {"ConsoleApp": "everywhere", "Checklist": "steps", "Gpus": "GPUs", "LogPane": "log", "Pager": "this pane"}
    name = type(node).__name__
    return names.get(name, "this screen" if isinstance(node, Screen) else name.removesuffix("Pane").lower() or name)
