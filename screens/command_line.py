"""The command line `:`: every verb by name, screens, scripts and a few words of the console's own; with completion.

`Tab` completes, arrows choose, `Enter` does it, `Esc` (or an empty line and Enter) leaves.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.strip import Strip
from textual.widgets import Input

from console.deploy.script import shipped
from console.deploy.steps import ORDER, SUMMARIES
from console.errors import RelaunchError
from console.text import clean
from console.verbs import VERBS
from screens.deeds import Deed, remedies, save
from screens.widgets.lines import Note, Pane, Part, line

if TYPE_CHECKING:
    from screens.app import ConsoleApp

SHOWN = 8
"""Completions at once."""
ALIASES = {
    "deploy": "redeploy",
    "log": "logs",
    "gpu": "gpus",
    "cause": "diagnose",
    "throughput": "bench",
    "main": "home",
    "quit": "q",
}
_OWN = {
    "nodes": "all known nodes",
    "fix": "apply the known remedy of the last failed launch, and launch with it",
    "interrupt": "stop walking; what runs on the node goes on",
    "save": "NAME: write what was done by keys as a script that does the same",
    "help": "keys and commands",
    "home": "back to the main screen",
    "look": "read the node's facts again",
    "q": "leave the console; what runs on the node goes on",
}
_HEADLESS = frozenset({"audit", "catalogue", "fit", "patch", "profile", "rehearsal"})
"""Verbs that need a command line of their own; the console says how to say them."""


def commands() -> dict[str, str]:
    """Every command with one line of help."""
    words = dict(_OWN)
    words |= {verb.name: verb.help for verb in VERBS if verb.name not in _HEADLESS}
    words |= {f"run {name}": "this script" for name in shipped()}
    words |= {f"run {name}": f"this step alone: {SUMMARIES[name]}" for name in ORDER if name not in shipped()}
    return dict(sorted(words.items()))


def matches(text: str) -> list[tuple[str, str]]:
    """Commands that `text` may become, the likely ones first."""
    known = commands()
    word = text.strip().lower()
    if not word:
        return [(name, words) for name, words in known.items() if not name.startswith("run ")]
    first = [name for name in known if name.startswith(word)]
    first += [ALIASES[name] for name in ALIASES if name.startswith(word) and ALIASES[name] not in first]
    inside = [name for name in known if word in name and name not in first]
    return [(name, known[name]) for name in (*first, *inside)]


class Matches(Pane):
    """The commands that fit what was typed so far."""

    DEFAULT_CSS = f"Matches {{ height: auto; max-height: {SHOWN + 1}; }}"

    def __init__(self) -> None:
        super().__init__(id="matches")
        self.found: list[tuple[str, str]] = matches("")
        self.place = 0
        self._rows = [line("")] * (min(SHOWN, len(self.found)) + 1)

    def rows(self, width: int, height: int) -> list[Strip]:
        first = max(0, min(self.place - SHOWN + 1, len(self.found) - SHOWN))
        rows = [self.title(width, "Command", (f"{len(self.found)} fit" if self.found else "nothing fits", "dim"))]
        for place, (name, words) in enumerate(self.found[first : first + SHOWN], first):
            here = place == self.place
            mark: Part = (self.glyphs.cursor, "bold cyan") if here else " "
            rows.append(
                line(
                    mark, (f"{name:<16}", "bold" if here else ""), (words[: max(0, width - 18)], "" if here else "dim")
                )
            )
        return rows


class CommandLine(ModalScreen[str]):
    """One line at the bottom. Dismisses with the command, or None."""

    AUTO_FOCUS = "Input"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "leave", id="command.leave"),
        Binding("tab", "complete", "complete", id="command.complete", priority=True),
        Binding("down", "move(1)", "next", id="command.next", show=False, priority=True),
        Binding("up", "move(-1)", "previous", id="command.previous", show=False, priority=True),
    ]

    def compose(self) -> ComposeResult:
        with Vertical(id="command"):
            yield Matches()
            with Horizontal(id="command-prompt"):
                yield Note([line((":", "bold cyan"))], id="command-sign")
                yield Input(id="command-line", compact=True)

    def on_key(self, event: events.Key) -> None:
        """Keys that come before the line has the focus, as in a burst over a slow link, are not lost."""
        if self.focused is None and event.is_printable and event.character:
            event.stop()
            self.query_one(Input).insert_text_at_cursor(event.character)
        elif self.focused is None and event.key == "enter":
            event.stop()
            self._submit(self.query_one(Input).value)

    def on_input_changed(self, event: Input.Changed) -> None:
        pane = self.query_one(Matches)
        pane.found, pane.place = matches(event.value), 0
        pane.redraw()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self._submit(event.value)

    def _submit(self, typed: str) -> None:
        text = typed.strip()
        pane = self.query_one(Matches)
        if (text and pane.found and pane.place) or (not text and pane.place):
            text = pane.found[pane.place][0]
        self.dismiss(text or None)

    def action_complete(self) -> None:
        pane = self.query_one(Matches)
        if pane.found:
            line_ = self.query_one(Input)
            line_.value = f"{pane.found[pane.place][0]} "
            line_.cursor_position = len(line_.value)

    def action_move(self, by: int) -> None:
        pane = self.query_one(Matches)
        pane.place = max(0, min(len(pane.found) - 1, pane.place + by))
        pane.redraw()

    def action_leave(self) -> None:
        self.dismiss(None)


def obey(app: ConsoleApp, text: str) -> None:
    """Do a command of the command line; what cannot be done is said."""
    word, _, rest = clean(text).strip().removeprefix(":").partition(" ")
    word, rest = word.lower(), rest.strip()
    replace = word.endswith("!")
    name = _meant(ALIASES.get(word.rstrip("!"), word.rstrip("!")))
    try:
        _do(app, name, rest, replace=replace)
    except RelaunchError as error:
        app.say(f"{error.message}{'; ' + error.remedy if error.remedy else ''}", "error")


def _meant(word: str) -> str:
    """The command, or the only one that begins so."""
    names = [name for name in (*_OWN, *(verb.name for verb in VERBS), "run") if name.startswith(word)]
    return names[0] if word and word not in names and len(names) == 1 else word


def _do(app: ConsoleApp, name: str, rest: str, *, replace: bool) -> None:
    from screens.app import VERB_SCREENS
    from screens.errands import report, unlock

    if name == "q":
        app.action_leave()
    elif name == "home":
        app.home()
    elif name in ("help", "nodes"):
        app.open(name)
    elif name == "fix":
        app.action_fix()
    elif name == "interrupt":
        app.later(app.source.interrupt())
    elif name == "look":
        app.later(app.source.look())
    elif name == "save":
        if not rest:
            app.say(":save NAME writes what was done as a script", "warning")
        else:
            app.say(f"saved as {save(app, rest, replace=replace)}")
    elif name == "run" and rest:
        app.do(Deed(rest))
    elif name == "show":
        app.open("replay", run=rest) if rest else app.open("replay")
    elif name == "report":
        app.later(report(app, rest))
    elif name == "unlock":
        app.later(unlock(app))
    elif name in VERB_SCREENS:
        app.open(VERB_SCREENS[name])
    elif name == "resume":
        app.do(Deed(_unfinished(app), resume=True))
    elif name == "rollback":
        app.do(Deed(name, release=rest))
    elif any(verb.name == name and verb.script for verb in VERBS):
        app.do(Deed(name))
    elif any(verb.name == name for verb in VERBS):
        app.say(f"{name} wants more words than stand here; in a shell: relaunch {name} --help", "warning")
    else:
        near = _near(name, commands())
        app.say(
            f"there is no command {name!r}{f', did you mean {near}?' if near else '; Tab after : lists them'}",
            "warning",
        )


def _near(name: str, known: Iterable[str]) -> str:
    return next(iter(difflib.get_close_matches(name, list(known), 1)), "")


def _unfinished(app: ConsoleApp) -> str:
    """The script of the last unfinished run of this node. Raises UsageError when there is none."""
    from console.deploy.resume import unfinished
    from console.errors import UsageError

    glance = app.source.glance()
    node = glance.node
    found = unfinished(app.source.store, node, glance.facts)
    if found is not None:
        return found.script
    more = ":fix launches with the known remedy of the last failure" if remedies(app) else "D redeploys"
    raise UsageError(f"no unfinished run of {node or 'this node'}: nothing to resume", more)
