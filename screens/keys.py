"""Keys: the bindings of the console, made of the verbs' own keys, and the operator's keymap file.

$XDG_CONFIG_HOME/relaunch/keys.yaml maps a binding's id to a key or to keys with commas between:

    plan: P
    pager.down: j,down,ctrl+n

Textual takes whatever stands there in silence, and a key that was quietly taken from *stop* is a danger; so the file is
checked here, and every problem is told as file:line:col before the console opens: an id that does not exist, a key that
cannot be parsed, a key that two bindings of one screen would share, a key that tmux or screen keeps for itself.
"""

from __future__ import annotations

import difflib
import re
import string
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from textual.binding import Binding, BindingType
from textual.keys import Keys, _character_to_key

from console.errors import InvalidFile, Problem
from console.verbs import VERBS, verb

if TYPE_CHECKING:
    import yaml

FORBIDDEN = {
    "ctrl+a": "it is GNU screen's prefix",
    "ctrl+b": "it is tmux's prefix",
    "ctrl+s": "it stops the terminal's output",
    "ctrl+q": "it starts the terminal's output",
    "ctrl+z": "it suspends the console",
    "ctrl+i": "it is Tab",
    "ctrl+m": "it is Enter",
    "ctrl+j": "it is Enter on many terminals, and moves between tmux panes",
    "ctrl+h": "it is Backspace on many terminals",
    "ctrl+c": "it leaves the console",
}
_NAMED = frozenset(key.value for key in Keys) | {"space", "enter", "tab", "escape", "backspace", "delete"}
_SHIFTABLE = re.compile(r"(?:(?:ctrl|alt|shift)\+){0,3}([a-z0-9]|f[1-9]|f1[0-2]|up|down|left|right|home|end|pageup|pagedown"
                        r"|insert|delete|tab|enter|space)\Z")  # fmt: skip


def verb_binding(name: str, words: str = "", *, show: bool = True) -> Binding:
    """The binding of a verb: key and id are the registry's; the app's `verb` action does it."""
    chosen = verb(name)
    return Binding(chosen.key, f"app.verb('{name}')", words or name, id=name, tooltip=chosen.help, show=show)


def keyed_verbs() -> tuple[str, ...]:
    """Names of the verbs that have a key."""
    return tuple(item.name for item in VERBS if item.key)


@dataclass(frozen=True, slots=True)
class Scope:
    """Bindings that are live together: a screen with its panes and the app. Keys in one scope must differ where the
    operator changes them; what the panes of a screen share by default (j, k) they share on purpose."""

    name: str
    bindings: tuple[Binding, ...]


def bindings_of(*owners: type) -> tuple[Binding, ...]:
    """Every binding that the classes declare, base classes of ours included, one per id and key string."""
    found: dict[tuple[str, str], Binding] = {}
    for owner in owners:
        for cls in owner.__mro__:
            for item in vars(cls).get("BINDINGS", ()):
                binding = _binding(item)
                if binding.id:
                    found.setdefault((binding.id, binding.key), binding)
    return tuple(found.values())


def _binding(item: BindingType) -> Binding:
    return item if isinstance(item, Binding) else Binding(*item)


def load_keymap(path: Path, scopes: Iterable[Scope]) -> dict[str, str]:
    """The keymap of the file, ready for `App.set_keymap`; {} when there is no file. Raises InvalidFile."""
    if not path.is_file():
        return {}
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidFile((Problem(str(path), 1, 1, "keys", f"cannot be read: {error}"),)) from error
    return parse_keymap(text, str(path), tuple(scopes))


def parse_keymap(text: str, file: str, scopes: tuple[Scope, ...]) -> dict[str, str]:
    """The keymap in `text`. Raises InvalidFile with every problem as file:line:col."""
    import yaml  # most operators have no such file

    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or yaml.Mark(file, 0, 0, 0, None, 0)
        raise InvalidFile(
            (Problem(file, mark.line + 1, mark.column + 1, "keys", error.problem or "not YAML"),)
        ) from error
    if root is None:
        return {}
    if not isinstance(root, yaml.MappingNode):
        raise InvalidFile((Problem(file, 1, 1, "keys", "write one `id: key` per line"),))
    check = _Check(file, scopes)
    for key, value in root.value:
        check.entry(key, value)
    check.clashes()
    if check.problems:
        raise InvalidFile(tuple(check.problems))
    return {name: ",".join(keys) for name, (keys, _) in check.chosen.items()}


class _Check:
    """One pass over a keymap file."""

    def __init__(self, file: str, scopes: tuple[Scope, ...]) -> None:
        self.file = file
        self.scopes = scopes
        self.known = {binding.id for scope in scopes for binding in scope.bindings if binding.id}
        self.chosen: dict[str, tuple[tuple[str, ...], yaml.Node]] = {}
        self.problems: list[Problem] = []

    def entry(self, key: yaml.Node, value: yaml.Node) -> None:
        name = str(key.value)
        if name not in self.known:
            near = difflib.get_close_matches(name, sorted(self.known), 1)
            self._problem(
                key, name, f"no such binding{f', did you mean {near[0]}?' if near else '; help (?) shows the ids'}"
            )
            return
        if name in self.chosen:
            self._problem(key, name, "stands twice")
            return
        if not isinstance(value.value, str) or not value.value.strip():
            self._problem(value, name, "write a key, or keys with commas between; no binding can be without one")
            return
        keys = []
        for text in str(value.value).split(","):
            wrong = problem_of(text.strip())
            if wrong:
                self._problem(value, name, wrong)
            else:
                keys.append(normal(text.strip()))
        if keys:
            self.chosen[name] = (tuple(keys), value)

    def clashes(self) -> None:
        told: set[tuple[str, str]] = set()
        for scope in self.scopes:
            for name, (keys, node) in self.chosen.items():
                if not any(binding.id == name for binding in scope.bindings):
                    continue
                for other in scope.bindings:
                    if other.id is None or other.id == name:
                        continue
                    own = {key for item in scope.bindings if item.id == name for key in _defaults(item)}
                    # what two panes share by default (j, k) they share on purpose
                    alike = own & set(_defaults(other))
                    for shared in sorted((set(keys) & set(self._keys(other))) - alike):
                        pair = (min(name, other.id), max(name, other.id))
                        if pair not in told:
                            told.add(pair)
                            self._problem(
                                node, name, f"{shown(shared)} is the key of {other.id} in the {scope.name} screen"
                            )

    def _keys(self, binding: Binding) -> tuple[str, ...]:
        if binding.id in self.chosen:
            return self.chosen[binding.id][0]
        return _defaults(binding)

    def _problem(self, node: yaml.Node, name: str, text: str) -> None:
        mark = node.start_mark
        self.problems.append(Problem(self.file, mark.line + 1, mark.column + 1, name, text))


def _defaults(binding: Binding) -> tuple[str, ...]:
    return tuple(normal(key.strip()) for key in binding.key.split(","))


def problem_of(key: str) -> str:
    """What is wrong with a key as an operator wrote it, or empty."""
    if not key:
        return "an empty key: a comma too many?"
    low = normal(key)
    if low in FORBIDDEN:
        return f"{key} cannot be used: {FORBIDDEN[low]}"
    if len(key) == 1 or low in _NAMED or _SHIFTABLE.match(low):
        return ""
    return f"{key!r} is no key; write a letter, a digit, f1-f12, an arrow, or ctrl+letter"


def normal(key: str) -> str:
    """A key in the form that Textual knows: `?` becomes question_mark, names are lower case, a capital stays."""
    return _character_to_key(key) if len(key) == 1 else key.lower()


def shown(key: str) -> str:
    """A key as an operator writes it: `?`, `D`, `enter`."""
    if key in _WORDS:
        return _WORDS[key]
    return _SIGNS.get(key, key)


_SIGNS = {_character_to_key(sign): sign for sign in string.punctuation}
_WORDS = {"escape": "esc", "pageup": "pgup", "pagedown": "pgdn"}


def keymap_file(config: Path) -> Path:
    return config / "keys.yaml"
