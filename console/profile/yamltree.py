"""YAML text as a tree of plain text with positions: no scalar is interpreted, and every trap of YAML is an error.

`parse_tree` never raises: it returns the tree and every problem it met. What YAML calls a value is left as the text that
was written (`0123456`, `0.10`, `on`), for `console.profile.yamlio` to read by the schema. Refused, each with its
position: anchors, aliases, merge keys, tags, a second document, duplicate keys, keys that are not text, tabs as
indentation, control characters, a byte order mark, bytes that are no UTF-8, and files over `LIMIT` bytes or deeper than
`DEPTH`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import yaml

from console.errors import Problem

LIMIT = 1 << 20
"""Bytes that a file may have; profiles have some 5 kB, the failure catalogue some 100."""
DEPTH = 24

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# YAML takes NEL, U+2028 and U+2029 for line breaks, and no editor shows them as such
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029]")


@dataclass(frozen=True, slots=True)
class Place:
    """Where something stands; both count from 1."""

    line: int = 1
    column: int = 1


@dataclass(frozen=True, slots=True)
class Scalar:
    """A value as written. `plain`: without quotes, so that the schema may read it as number, switch or nothing."""

    text: str
    plain: bool
    place: Place


@dataclass(frozen=True, slots=True)
class Sequence:
    items: tuple[Tree, ...]
    place: Place


@dataclass(frozen=True, slots=True)
class Mapping:
    """Keys in the order of the file, each with its own place; a duplicate is left out here and is a problem."""

    entries: dict[str, Tree]
    key_places: dict[str, Place]
    place: Place


Tree: TypeAlias = Scalar | Sequence | Mapping


def parse_tree(source: str | bytes, file: str) -> tuple[Tree | None, tuple[Problem, ...]]:
    """The tree of the one document in `source` (None when there is none), and every problem of its form."""
    text, problem = _text(source, file)
    if text is None or problem is not None:
        return None, (problem,) if problem else ()
    builder = _Builder(file)
    builder.problems += _bad_characters(text, file)
    if builder.problems:
        return None, tuple(builder.problems)
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            builder.feed(event)
    except yaml.MarkedYAMLError as error:
        builder.problems.append(_syntax(error, file))
    except yaml.YAMLError as error:
        builder.problems.append(Problem(file, 1, 1, "yaml", str(error).splitlines()[0]))
    if builder.root is None and not builder.problems:
        builder.problems.append(Problem(file, 1, 1, "yaml", "the file is empty; write at least the required keys"))
    return builder.root, tuple(sorted(builder.problems))


def _text(source: str | bytes, file: str) -> tuple[str | None, Problem | None]:
    raw = source.encode("utf-8", "surrogatepass") if isinstance(source, str) else source
    if len(raw) > LIMIT:
        return None, Problem(file, 1, 1, "yaml", f"the file has {len(raw):,} bytes; at most {LIMIT:,} are read")
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        return None, Problem(file, 1, 1, "yaml", "the file is UTF-16; save it as UTF-8")
    if raw.startswith(b"\xef\xbb\xbf"):
        return None, Problem(file, 1, 1, "yaml", "the file begins with a byte order mark; save it as UTF-8 without BOM")
    try:
        return raw.decode("utf-8"), None
    except UnicodeDecodeError as error:
        before = raw[: error.start]
        line = before.count(b"\n") + 1
        column = len(before[before.rfind(b"\n") + 1 :].decode("utf-8", "replace")) + 1
        return None, Problem(
            file, line, column, "yaml", f"byte 0x{raw[error.start]:02x} is no UTF-8; save the file as UTF-8"
        )


def _bad_characters(text: str, file: str) -> list[Problem]:
    problems = []
    for number, line in enumerate(text.split("\n"), 1):
        control = _CONTROL.search(line.removesuffix("\r"))
        if control:
            name = f"U+{ord(control[0]):04X}"
            problems.append(
                Problem(
                    file, number, control.start() + 1, "yaml", f'control character {name}; write it as "\\x…" in quotes'
                )
            )
        indent = line[: len(line) - len(line.lstrip(" \t"))]
        if "\t" in indent and line.strip():
            problems.append(Problem(file, number, indent.index("\t") + 1, "yaml", "a tab as indentation; write spaces"))
    return problems


def _syntax(error: yaml.MarkedYAMLError, file: str) -> Problem:
    mark = error.problem_mark or error.context_mark
    line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
    message = " ".join(part for part in (error.problem, error.context and f"({error.context})") if part)
    return Problem(file, line, column, "yaml", message or "this is not YAML")


@dataclass(slots=True)
class _Open:
    """A collection whose end has not come yet. `tree` is None for a collection that stands where a key should."""

    tree: Sequence | Mapping
    items: list[Tree] = field(default_factory=list)
    key: str | None = None
    has_key: bool = False
    path: str = ""


class _Builder:
    """Folds parser events into a tree; iterative, so that no nesting can exhaust the stack."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.root: Tree | None = None
        self.problems: list[Problem] = []
        self._stack: list[_Open] = []
        self._documents = 0
        self._skip = 0  # depth inside a part that is refused as a whole

    def feed(self, event: yaml.Event) -> None:
        if isinstance(event, yaml.DocumentStartEvent):
            self._documents += 1
            if self._documents == 2:
                self._problem(event, "a second document begins here; one file holds one")
        elif self._documents > 1:
            return
        elif isinstance(event, yaml.AliasEvent):
            self._problem(event, f"the alias *{event.anchor} is not allowed; write the value out")
            self._value(Scalar("", False, _place(event)), refused=True)
        elif isinstance(event, yaml.ScalarEvent):
            self._marks(event)
            self._value(Scalar(event.value, event.style in (None, ""), _place(event)))
        elif isinstance(event, yaml.CollectionStartEvent):
            self._marks(event)
            self._begin(event)
        elif isinstance(event, yaml.CollectionEndEvent):
            self._end()

    def _begin(self, event: yaml.CollectionStartEvent) -> None:
        top = self._stack[-1] if self._stack else None
        if self._skip:
            self._skip += 1
            return
        if top is not None and isinstance(top.tree, Mapping) and not top.has_key:
            self._problem(event, "a key must be text")
            top.has_key, top.key = True, None
            self._skip = 1
            return
        if len(self._stack) >= DEPTH:
            self._problem(event, f"nested deeper than {DEPTH} levels")
            self._value(Scalar("", False, _place(event)), refused=True)
            self._skip = 1
            return
        place = _place(event)
        tree: Sequence | Mapping = (
            Mapping({}, {}, place) if isinstance(event, yaml.MappingStartEvent) else Sequence((), place)
        )
        self._stack.append(_Open(tree, path=self._path()))

    def _end(self) -> None:
        if self._skip:
            self._skip -= 1
            return
        done = self._stack.pop()
        tree = done.tree if isinstance(done.tree, Mapping) else Sequence(tuple(done.items), done.tree.place)
        self._value(tree)

    def _value(self, tree: Tree, *, refused: bool = False) -> None:
        if self._skip:
            return
        if not self._stack:
            self.root = tree
            return
        top = self._stack[-1]
        if isinstance(top.tree, Sequence):
            top.items.append(tree)
        elif not top.has_key:
            top.has_key, top.key = True, None if refused else self._key(top.tree, tree)
        else:
            if top.key is not None and not refused:
                top.tree.entries[top.key] = tree
            top.has_key, top.key = False, None

    def _key(self, mapping: Mapping, tree: Tree) -> str | None:
        if not isinstance(tree, Scalar):
            return None
        key = tree.text
        message = ""
        if key == "<<" and tree.plain:
            message = "merge keys (<<) are not allowed; write the values out"
        elif key == "" or (tree.plain and key == "~"):
            message = "an empty key"
        elif key in mapping.key_places:
            message = f"stands twice; the first is on line {mapping.key_places[key].line}"
        if message:
            field_name = ".".join(part for part in (self._path(), key) if part) or "yaml"
            self.problems.append(Problem(self.file, tree.place.line, tree.place.column, field_name, message))
            return None
        mapping.key_places[key] = tree.place
        return key

    def _path(self) -> str:
        """The dotted path of what comes next inside the innermost collection."""
        if not self._stack:
            return ""
        top = self._stack[-1]
        if isinstance(top.tree, Sequence):
            return f"{top.path}[{len(top.items)}]"
        return ".".join(part for part in (top.path, top.key or "") if part)

    def _marks(self, event: yaml.NodeEvent) -> None:
        if self._skip:
            return
        if event.anchor is not None:
            self._problem(event, f"the anchor &{event.anchor} is not allowed; write values out where they belong")
        tag = getattr(event, "tag", None)
        if tag is not None:
            shown = tag.replace("tag:yaml.org,2002:", "!!")
            self._problem(event, f"the tag {shown} is not allowed; the schema decides how a value is read")

    def _problem(self, event: yaml.Event, message: str) -> None:
        place = _place(event)
        self.problems.append(Problem(self.file, place.line, place.column, self._path() or "yaml", message))


def _place(event: yaml.Event) -> Place:
    mark = event.start_mark
    return Place(mark.line + 1, mark.column + 1) if mark else Place()
