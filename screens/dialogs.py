"""Questions: a box over the screen, Cancel focused; h/l, arrows or Tab choose, Enter takes, q or Esc cancels. Beside the
choices stand the keys, where there is room.

The box is drawn with ASCII alone. `typed` wants a word typed (a node's name, a folder); `secret` takes a password without
echo. What is asked about may come from a node and is cleaned here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.strip import Strip
from textual.widgets import Input

from console.live import Glance
from console.node.prompts import UnknownHost
from console.printing import moved_lines
from console.text import Secret, clean, duration
from screens.deeds import up_units
from screens.status import live_keys
from screens.widgets.lines import Lines, Pane, Part, line, wrap

if TYPE_CHECKING:
    from console.deploy.fix import ProfileEdit
    from console.deploy.lock import Owner
    from screens.deeds import Deed

Result = TypeVar("Result")
INNER = 72
"""Columns inside the box at its full width."""


class Choices(Pane):
    """`[ Cancel ]  [ Redeploy ]`: one row, one chosen."""

    can_focus = True
    DEFAULT_CSS = "Choices { height: 1; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("l,right", "move(1)", "choose", id="dialog.next"),
        Binding("h,left", "move(-1)", "choose", id="dialog.previous", show=False),
        Binding("tab", "turn", "choose the next, or go to the line", id="dialog.turn", show=False),
        Binding("enter,space", "take", "take", id="dialog.take"),
    ]

    def __init__(self, words: Sequence[str], chosen: int = 0) -> None:
        super().__init__(id="choices")
        self.words = tuple(words)
        self.chosen = chosen

    def rows(self, width: int, height: int) -> list[Strip]:
        parts: list[Part] = []
        for place, word in enumerate(self.words):
            here = place == self.chosen
            look = "reverse bold" if here and self.has_focus else ("bold" if here else "dim")
            mark = self.glyphs.cursor if here else " "
            parts += [(f"{mark}[ {word} ]", look), "  "]
        keys = "  ".join(f"{key} {words}" for _, key, words in live_keys(self.screen.active_bindings))
        room = width - sum(len(part if isinstance(part, str) else part[0]) for part in parts)
        if self.has_focus and 0 < len(keys) <= room:
            parts += [" " * (room - len(keys)), (keys, "dim")]
        return [line(*parts)]

    def action_turn(self) -> None:
        if len(self.screen.focus_chain) > 1:
            self.screen.focus_next()
        else:
            self.chosen = (self.chosen + 1) % len(self.words)
            self.redraw()

    def action_move(self, step: int) -> None:
        self.chosen = max(0, min(len(self.words) - 1, self.chosen + step))
        self.redraw()

    def action_take(self) -> None:
        if isinstance(self.screen, Dialog):
            self.screen.took(self.chosen)


class _Words(Lines):
    """The text of a dialog, wrapped at the width that it got."""

    DEFAULT_CSS = "_Words { height: auto; }"

    def __init__(self, title: str, text: str, look: str) -> None:
        super().__init__()
        self._said = (title, text, look)
        self._lay(INNER)

    def _lay(self, width: int) -> None:
        title, text, look = self._said
        body = [line(f"  {part}") if part else line("") for part in wrap(text, max(10, width - 2))]
        self.put([line((title, look)), line(""), *body, line("")]) if self.is_mounted else self._rows.extend(
            [line((title, look)), line(""), *body, line("")]
        )

    def on_resize(self) -> None:
        self._lay(self.size.width)


class Dialog(ModalScreen[Result], Generic[Result]):
    """Base of the questions. `words` are the choices, the first of which is focused and harmless."""

    AUTO_FOCUS = "#choices"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "cancel", "cancel", id="dialog.cancel")]

    def __init__(self, title: str, text: str, words: Sequence[str], *, grave: bool = False, start: int = 0) -> None:
        super().__init__()
        self._title_words, self._text, self._words = clean(title), clean(text), tuple(words)
        self._look = "bold red" if grave else "bold"
        self._start = start

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog"):
            yield _Words(self._title_words, self._text, self._look)
            yield from self.between()
            yield Choices(self._words, self._start)

    def between(self) -> ComposeResult:
        """Widgets between the text and the choices."""
        yield from ()

    def took(self, place: int) -> None:
        """The choice at `place` was taken."""
        raise NotImplementedError

    def action_cancel(self) -> None:
        self.dismiss(None)


class Question(Dialog[bool]):
    """Cancel, or the deed."""

    def took(self, place: int) -> None:
        self.dismiss(place == 1)


class Told(Dialog[int]):
    """A few harmless choices; the place of the one that was taken."""

    def took(self, place: int) -> None:
        self.dismiss(place)


class Typed(Dialog[bool]):
    """The deed only after a word was typed."""

    def __init__(self, title: str, text: str, word: str, deed: str) -> None:
        super().__init__(
            title, f"{text}\n\nType {clean(word)} to agree (Tab goes to the line):", ("Cancel", deed), grave=True
        )
        self._word = clean(word)

    def between(self) -> ComposeResult:
        yield Input(id="typed", compact=True, select_on_focus=False)

    def took(self, place: int) -> None:
        if place == 0:
            self.dismiss(False)
        elif self.query_one(Input).value.strip() == self._word:
            self.dismiss(True)
        else:
            self.query_one(Input).focus()
            self.app.bell()

    def on_input_submitted(self) -> None:
        self.took(1)


class SecretLine(Dialog[Secret]):
    """A password without echo; None when it is not given."""

    AUTO_FOCUS = "#secret"

    def between(self) -> ComposeResult:
        yield Input(id="secret", password=True, compact=True)

    def took(self, place: int) -> None:
        value = self.query_one(Input).value
        self.dismiss(Secret(value) if place == 1 and value else None)

    def on_input_submitted(self) -> None:
        self.took(1)


class PathLine(Dialog[str]):
    """A path; None when none is given."""

    AUTO_FOCUS = "#path"

    def between(self) -> ComposeResult:
        yield Input(id="path", compact=True)

    def took(self, place: int) -> None:
        value = self.query_one(Input).value.strip()
        self.dismiss(value if place == 1 and value else None)

    def on_input_submitted(self) -> None:
        self.took(1)


def asked_path(title: str, text: str) -> PathLine:
    """A path that is typed."""
    return PathLine(title, text, ("Cancel", "Open"))


def typed(title: str, question: str, word: str) -> Typed:
    """A question of a run whose answer is a typed word."""
    return Typed(title, question, word, "Agree")


def unknown_host(question: UnknownHost) -> Question:
    """A host key seen for the first time."""
    return Question(
        "Unknown host key",
        f"{question.host}:{question.port} shows a key that is not known yet:\n{question.algorithm}\n{question.fingerprint}\n\n"
        f"Compare it with the one that the machine's owner gives you. It would be kept in {question.stored_in}.",
        ("Cancel", "It is the same: keep it"),
    )


def password(question: str) -> SecretLine:
    """A password that the node asks for."""
    return SecretLine("Password", question, ("Cancel", "Send"))


_DOWNTIME = ("stop", "drain", "launch", "ready")
_CONSEQUENCES = {
    "redeploy": "Brings the node to the profile. What serves now is stopped on the way, and comes back if the new model fails "
    "and the profile says so.",
    "rollback": "Stops what serves now and starts the release before it again, or what served before the first one.",
    "bench": "Loads the serving model with the profile's load points.",
    "prepare": "Downloads, checks and patches. Nothing that serves is touched.",
    "resume": "Takes up the last unfinished run.",
    "stop": "Ends it and proves that it is gone: processes, port, GPU memory. Nothing serves afterwards, until a redeploy or a "
    "rollback.",
}


def destroying(
    deed: Deed, glance: Glance, *, production: bool, edits: Sequence[ProfileEdit] = (), lacks: str = ""
) -> Dialog[bool]:
    """The question before something that destroys; on a production node its name is typed. `edits` are the remedies that
    the deed begins with, `lacks` says which ones it leaves out."""
    what = deed.words
    profile = f", profile {glance.profile.name}" if glance.profile else ""
    serves = f" Serves now: {', '.join(up_units(glance)) or 'nothing'}." if glance.facts is not None else ""
    text = [f"On {glance.node or 'the node'}{profile}.{serves}"]
    text.append(_CONSEQUENCES.get(deed.script, "Runs this script; steps that are not satisfied change the node."))
    if lacks:
        text += ["", lacks, ""]
    for edit in edits:
        text += ["", f"The remedy: {edit.text}.", *(f"  {row}" for row in moved_lines(edit.diff).splitlines())]
    text += [""] if edits else []
    took = dict(glance.expected)
    total = sum(took[name] for name in _DOWNTIME) if set(_DOWNTIME) <= set(took) else 0.0
    if total and deed.script in ("redeploy", "rollback"):
        text.append(f"Downtime last time: about {duration(total)}.")
    if glance.rehearsal:
        text.append("This is the practice node: nothing real is touched.")
    words = "\n".join(text)
    title = f"{what[0].upper()}{what[1:]}?"
    if production and not glance.rehearsal:
        return Typed(title, f"{words}\n{glance.node} is marked production.", glance.node, what)
    return Question(title, words, ("Cancel", what), grave=True)


def choice(title: str, text: str, words: Sequence[str]) -> Told:
    """Something that is told, with what may be done about it; the first choice is to leave it."""
    return Told(title, text, words)


def unlocking(owner: Owner, glance: Glance, *, production: bool) -> Dialog[bool]:
    """The question before somebody's lock is removed; on a production node its name is typed."""
    words = (
        f"{glance.node} is locked by {owner}.\n"
        "When that console still works there, two would change the node at once. Remove the lock only of one that is gone."
    )
    if production and not glance.rehearsal:
        return Typed("Remove this lock?", f"{words}\n{glance.node} is marked production.", glance.node, "Remove it")
    return Question("Remove this lock?", words, ("Cancel", "Remove it"), grave=True)


def leaving(glance: Glance) -> Question:
    """Asked when the console is left while a run goes on."""
    now = next((step.name for step in glance.run.steps if step.state in ("checking", "running", "verifying")), "")
    return Question(
        f"Leave run {glance.run.run}{f' at {now}' if now else ''}?",
        "What runs on the node goes on: a download, a starting server. The steps after it wait until you come back and say "
        ":resume, or `relaunch resume`.",
        ("Stay", "Leave, let it run"),
        start=1,
    )
