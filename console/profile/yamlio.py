"""YAML that an operator wrote -> a pydantic model: the schema decides how a scalar's text is read, and every problem is
told at once as file:line:col with what would be right.

`decode` is general: profiles, nodes files, scripts and catalogues are all read by it. Two passes over one tree: the
first types each scalar by the annotation of its field (`console.profile.scalars`), finds unknown keys and missing
collections; the second is pydantic's own validation (bounds, validators), its locations mapped back to the file. A
value that failed the first pass is left out of the second, so that one mistake is told once.
"""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError

from console.errors import InvalidFile, Problem, UsageError
from console.profile import scalars
from console.profile.yamltree import LIMIT, Mapping, Place, Scalar, Sequence, Tree, parse_tree

T = TypeVar("T")
Loc = tuple[str | int, ...]
"""Where in the data: keys and list indices."""
Rule = Callable[[Any], Iterable[tuple[Loc, str]]]
"""Looks at the typed data (dicts and lists, fields that failed left out) and yields what is wrong where."""


class Hole:
    """Stands in a list for an item that could not be read; rules must expect it."""


_ABSENT: Any = Hole()


def decode(
    source: str | bytes, model: type[T], *, file: str, rules: Rule | None = None
) -> tuple[T | None, tuple[Problem, ...]]:
    """The value of type `model` that `source` holds, or None and every problem, in the order of the file.

    `model` is a pydantic model or any type pydantic knows (`list[Entry]`). `rules` adds checks across fields; they see
    what could be read even when other fields failed, so that all problems come in one go.
    """
    tree, problems = parse_tree(source, file)
    if tree is None:
        return None, problems
    walk = _Walk(file, list(problems))
    data = walk.value(tree, model, ())
    value: Any = None
    if data is not _ABSENT:
        if rules is not None:
            for loc, message in rules(data):
                walk.problem(loc, message)
        try:
            value = TypeAdapter(model).validate_python(data)
        except ValidationError as error:
            walk.take(error)
    found = tuple(sorted(dict.fromkeys(walk.problems)))
    return (None if found else value), found


def load(path: Path, model: type[T], *, rules: Rule | None = None) -> T:
    """The value in the file at `path`. Raises `InvalidFile` with every problem, `UsageError` when it can't be read."""
    value, problems = decode(read_bounded(path), model, file=str(path), rules=rules)
    if problems or value is None:
        raise InvalidFile(problems)
    return value


def read_bounded(path: Path) -> bytes:
    """The bytes of a file, one more than `LIMIT` at most, so that a huge file costs nothing before it is refused."""
    try:
        with path.open("rb") as stream:
            return stream.read(LIMIT + 1)
    except FileNotFoundError as error:
        raise UsageError(f"there is no file {path}") from error
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error


def dotted(loc: Loc) -> str:
    """`throughput.points[0].concurrency`."""
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text or "yaml"


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known name that `word` was probably meant to be; `-` and `_` are the same, case does not count."""
    names = {name.lower().replace("-", "_"): name for name in known}
    plain = word.lower().replace("-", "_")
    if plain in names:
        return names[plain]
    hits = difflib.get_close_matches(plain, names, n=1, cutoff=0.7)
    return names[hits[0]] if hits else None


def model_fields(annotation: Any) -> dict[str, Any]:
    """Field names (aliases where set) of a model, and their annotations."""
    return {info.alias or name: info.annotation for name, info in annotation.model_fields.items()}


@dataclass(slots=True)
class _Walk:
    """The typed pass. `places` remembers where each location stands, for problems that are found later."""

    file: str
    problems: list[Problem]
    places: dict[Loc, Place] = field(default_factory=dict)
    failed: set[Loc] = field(default_factory=set)
    root: Any = None

    def problem(self, loc: Loc, message: str, place: Place | None = None) -> None:
        at = place or next((self.places[loc[:n]] for n in range(len(loc), -1, -1) if loc[:n] in self.places), Place())
        self.problems.append(Problem(self.file, at.line, at.column, dotted(loc), message))

    def fail(self, loc: Loc, message: str) -> Any:
        self.problem(loc, message)
        self.failed.add(loc)
        return _ABSENT

    def value(self, tree: Tree, annotation: Any, loc: Loc) -> Any:
        """The data of `tree` as `annotation` wants it, or _ABSENT after telling why not."""
        if not loc:
            self.root = annotation
        self.places[loc] = tree.place
        options = _options(annotation)
        if isinstance(tree, Scalar):
            return self._scalar(tree, options, loc)
        if isinstance(tree, Sequence):
            return self._sequence(tree, options, loc)
        return self._mapping(tree, options, loc)

    def _scalar(self, tree: Scalar, options: tuple[Any, ...], loc: Loc) -> Any:
        if scalars.is_nothing(tree) and (type(None) in options or _anything(options)):
            return None
        try:
            return _read(tree, options)
        except scalars.Unreadable as error:
            return self.fail(loc, str(error))

    def _sequence(self, tree: Sequence, options: tuple[Any, ...], loc: Loc) -> Any:
        kind = next((o for o in options if get_origin(o) in (list, tuple, set, frozenset)), None)
        if kind is None and not _anything(options):
            return self.fail(loc, f"{_wanted(options)} is expected, not a list")
        item = get_args(kind)[0] if kind is not None and get_args(kind) else object
        # A failed item stays as a hole: without it the indices of the others would no longer be those of the file.
        # Pydantic complains of the hole at a location that has failed already, and that is not told twice.
        return [self.value(child, item, (*loc, index)) for index, child in enumerate(tree.items)]

    def _mapping(self, tree: Mapping, options: tuple[Any, ...], loc: Loc) -> Any:
        for key, place in tree.key_places.items():
            self.places[(*loc, key)] = place
        models = [o for o in options if isinstance(o, type) and issubclass(o, BaseModel)]
        if models:
            return self._model(tree, max(models, key=lambda m: len(tree.entries.keys() & model_fields(m).keys())), loc)
        kind = next((o for o in options if get_origin(o) is dict), None)
        if kind is None and not _anything(options):
            return self.fail(loc, f"{_wanted(options)} is expected, not keys and values")
        key_type, value_type = get_args(kind) if kind is not None else (str, object)
        data: dict[Any, Any] = {}
        for key, child in tree.entries.items():
            name = self._key(key, key_type, (*loc, key))
            value = self.value(child, value_type, (*loc, key))
            if name is not _ABSENT and value is not _ABSENT:
                data[name] = value
        return data

    def _key(self, key: str, annotation: Any, loc: Loc) -> Any:
        try:
            return _read(Scalar(key, annotation is not str, Place()), _options(annotation))
        except scalars.Unreadable as error:
            return self.fail(loc, f"as a key: {error}")

    def _model(self, tree: Mapping, model: type[BaseModel], loc: Loc) -> Any:
        fields = model_fields(model)
        data: dict[str, Any] = {}
        for key, child in tree.entries.items():
            if key not in fields:
                if model.model_config.get("extra") == "forbid":
                    near = nearest(key, fields.keys() - tree.entries.keys())
                    self.problem((*loc, key), self._unknown(key, near, fields), tree.key_places[key])
                    self.failed.add((*loc, near or key))
                continue
            value = self.value(child, fields[key], (*loc, key))
            if value is not _ABSENT:
                data[key] = value
        return data

    def _unknown(self, key: str, near: str | None, fields: dict[str, Any]) -> str:
        """What an unknown key was probably meant to be: a name nearby, or the same name in another part."""
        if near:
            return f"unknown key; did you mean {near}?"
        homes = [path for path in _homes(self.root, key) if path]
        if homes:
            return f"unknown key here; it belongs in {' or '.join(homes[:2])}"
        return f"unknown key; known here: {', '.join(fields)}"

    def take(self, error: ValidationError) -> None:
        """Pydantic's findings, at the deepest place of the file that each location names."""
        for detail in error.errors(include_url=False):
            loc = self._known(detail["loc"])
            if any(loc[:n] in self.failed for n in range(len(loc) + 1)):
                continue
            if detail["type"] == "missing":
                name = str(detail["loc"][-1])
                target = (*loc, name) if not loc or loc[-1] != name else loc
                if target not in self.failed:
                    self.problem(target, "is required" + _description(self.root, target))
                continue
            self.problem(loc, _message(detail))

    def _known(self, reported: tuple[str | int, ...]) -> Loc:
        """`reported` without what pydantic adds for unions and validators, cut where the file has no such place."""
        loc: Loc = ()
        for part in reported:
            if (*loc, part) in self.places or (*loc, part) in self.failed:
                loc = (*loc, part)
        return loc


def _options(annotation: Any) -> tuple[Any, ...]:
    """The members of a union, flattened; one member for anything else. Annotated and type aliases are looked through."""
    origin = get_origin(annotation)
    if origin is typing.Annotated:
        return _options(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return tuple(option for member in get_args(annotation) for option in _options(member))
    if isinstance(annotation, typing.TypeVar):
        return (object,)
    return (annotation,)


def _anything(options: tuple[Any, ...]) -> bool:
    return any(option in (object, Any) for option in options)


def _read(scalar: Scalar, options: tuple[Any, ...]) -> Any:
    literals = [value for option in options if get_origin(option) is Literal for value in get_args(option)]
    kinds = {option for option in options if option in (bool, int, float, str)}
    if literals and (not kinds or scalar.text in map(str, literals)):
        return _read_literal(scalar, literals)
    if _anything(options) or len(kinds) > 1:
        value = scalars.read_generic(scalar)
        if _anything(options) or type(value) in kinds:
            return value
        if isinstance(value, int) and not isinstance(value, bool) and float in kinds:
            return float(value)
        if str in kinds:
            return scalars.read_text(scalar)
        raise scalars.Unreadable(f"{_wanted(options)} is expected, not {scalars.shown(scalar)}")
    if kinds:
        readers: dict[type, Callable[[Scalar], Any]] = {
            bool: scalars.read_bool, int: scalars.read_int, float: scalars.read_float, str: scalars.read_text,
        }  # fmt: skip
        return readers[kinds.pop()](scalar)
    if all(_is_collection(option) for option in options if option is not type(None)):
        raise scalars.Unreadable(f"{_wanted(options)} is expected, not {scalars.shown(scalar)}")
    return scalars.read_text(scalar)  # an enum, a path, a pattern: pydantic makes it of the text


def _read_literal(scalar: Scalar, literals: list[Any]) -> Any:
    for value in literals:
        if isinstance(value, bool) or not isinstance(value, str):
            if scalar.plain and scalar.text == (str(value).lower() if isinstance(value, bool) else str(value)):
                return value
        elif scalar.text == value:
            return value
    near = nearest(scalar.text, [str(value) for value in literals])
    hint = f"; did you mean {near}?" if near else ""
    raise scalars.Unreadable(f"one of {', '.join(map(str, literals))} is expected, not {scalars.shown(scalar)}{hint}")


def _is_collection(option: Any) -> bool:
    return get_origin(option) in (list, tuple, set, frozenset, dict) or (
        isinstance(option, type) and issubclass(option, BaseModel)
    )


def _wanted(options: tuple[Any, ...]) -> str:
    names: list[str] = []
    for option in options:
        if get_origin(option) in (list, tuple, set, frozenset):
            names.append("a list")
        elif get_origin(option) is dict or (isinstance(option, type) and issubclass(option, BaseModel)):
            names.append("a group of keys")
        elif option is not type(None):
            words = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
            names.append(words.get(option, "a value"))
    return " or ".join(dict.fromkeys(names))


def _homes(annotation: Any, key: str, path: str = "", depth: int = 0) -> list[str]:
    """Dotted paths of the models below `annotation` that have a field named `key`."""
    found: list[str] = []
    for option in _options(annotation) if depth < 8 else ():
        if isinstance(option, type) and issubclass(option, BaseModel):
            fields = model_fields(option)
            if key.replace("-", "_") in fields:
                found.append(path)
            for name, inner in fields.items():
                found += _homes(inner, key, f"{path}.{name}" if path else name, depth + 1)
        elif _is_collection(option):
            item = next((arg for arg in reversed(get_args(option)) if arg is not ...), object)
            found += _homes(item, key, path, depth + 1)
    return found


def _description(root: Any, loc: Loc) -> str:
    """What the schema says about a missing field, as `: …`."""
    annotation = root
    text = ""
    for part in loc:
        text = ""
        for option in _options(annotation):
            if isinstance(option, type) and issubclass(option, BaseModel) and part in option.model_fields:
                annotation, text = (
                    option.model_fields[str(part)].annotation,
                    option.model_fields[str(part)].description or "",
                )
                break
            if get_args(option) and _is_collection(option):
                annotation = get_args(option)[-1] if get_origin(option) is dict else get_args(option)[0]
                break
    return f": {text}" if text else ""


def _message(detail: Any) -> str:
    context = detail.get("ctx", {})
    given = detail.get("input")
    match detail["type"]:
        case "greater_than_equal":
            return f"must be at least {context['ge']}, is {given}"
        case "less_than_equal":
            return f"must be at most {context['le']}, is {given}"
        case "greater_than":
            return f"must be more than {context['gt']}, is {given}"
        case "less_than":
            return f"must be less than {context['lt']}, is {given}"
        case "value_error":
            return str(context.get("error", detail["msg"]))
        case _:
            text = str(detail["msg"])
            return text[:1].lower() + text[1:]
