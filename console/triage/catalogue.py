"""The three YAML files of triage, read with every problem as file:line:col: failures, noise, stages.

`read(text, file)` takes any of the three, and a user's own file that holds parts of all of them under the keys `failures`,
`noise`, `stages`, `launches`, `versions`, `facts`. Scalars are taken as the text that was written. An entry's `example` is a
line that its pattern must match: the lint, the tests and the page of known failures all live from it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any, Final

from console.errors import Problem
from console.triage.entries import KINDS, STAGES, WHERE, Cue, Failure, Noise, Stage

FIXES: Final = ("kv-patch", "kv-flag", "drop-flag", "max-model-len", "gpu-memory-utilization", "ready-timeout")
_ID = re.compile(r"[a-z0-9][a-z0-9_.-]*\Z")
_WINDOW = re.compile(r"(?:(?:>=|<=|<|>|==)\d+(?:\.\d+)*)(?:,(?:>=|<=|<|>|==)\d+(?:\.\d+)*)*\Z")
_FIX = re.compile(r"(" + "|".join(FIXES) + r")(?::(?:\{\w+\}|[^{}\s]+))?\Z")


@dataclass(slots=True)
class Parts:
    """What one file held."""

    failures: list[Failure] = field(default_factory=list)
    noise: list[Noise] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)
    launches: list[Cue] = field(default_factory=list)
    versions: list[Cue] = field(default_factory=list)
    facts: list[Cue] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


SECTIONS: Final = ("failures", "noise", "stages", "launches", "versions", "facts")


def packed(parts: Parts) -> bytes:
    """Sound parts as JSON, which is read ten times as fast as the YAML that they were written in."""
    return json.dumps({section: [_flat(entry) for entry in getattr(parts, section)] for section in SECTIONS}).encode()


def unpacked(data: bytes) -> Parts:
    """The parts of `packed`."""
    whole = json.loads(data)
    shapes = {"failures": Failure, "noise": Noise, "stages": Stage}
    return Parts(**{name: [_entry(shapes.get(name, Cue), flat) for flat in whole[name]] for name in SECTIONS})


def _flat(entry: Failure | Noise | Stage | Cue) -> list[Any]:
    values = (getattr(entry, each.name) for each in fields(entry))
    return [
        [
            _flat(part) if isinstance(part, Cue) else part
            for part in (sorted(value) if isinstance(value, frozenset) else value)
        ]
        if isinstance(value, (tuple, frozenset))
        else value
        for value in values
    ]


def _entry(shape: type[Any], flat: list[Any]) -> Any:
    named = dict(zip((each.name for each in fields(shape)), flat, strict=True))
    for name, value in named.items():
        if name == "cues":
            named[name] = tuple(_entry(Cue, each) for each in value)
        elif isinstance(value, list):
            named[name] = tuple(value) if name == "frames" else frozenset(value)
    return shape(**named)


_TEXT: Final = "text"
_LIST: Final = "list"
_FLAG: Final = "flag"
_CUES: Final = "cues"

_FAILURE: Final = {
    "id": _TEXT, "category": _TEXT, "kind": _TEXT, "where": _TEXT, "match": _TEXT, "not": _TEXT, "stages": _LIST,
    "why": _TEXT, "remedy": _TEXT, "source": _TEXT, "versions": _TEXT, "fix": _TEXT, "example": _TEXT, "fatal": _FLAG,
    "title": _TEXT, "repeat": _TEXT, "outside": _FLAG, "at": _TEXT, "in": _LIST,
}  # fmt: skip
_NOISE: Final = {
    "id": _TEXT, "match": _TEXT, "not": _TEXT, "stages": _LIST, "why": _TEXT, "source": _TEXT, "versions": _TEXT,
    "example": _TEXT, "show": _FLAG,
}  # fmt: skip
_STAGE: Final = {
    "id": _TEXT,
    "title": _TEXT,
    "stall": _TEXT,
    "cues": _CUES,
    "frames": _LIST,
    "hang": _TEXT,
    "advice": _TEXT,
}
_CUE: Final = {"id": _TEXT, "match": _TEXT, "versions": _TEXT, "source": _TEXT, "example": _TEXT, "engine": _TEXT}
_SECTIONS: Final = {
    "failures": _FAILURE, "noise": _NOISE, "stages": _STAGE, "launches": _CUE, "versions": _CUE, "facts": _CUE,
}  # fmt: skip
_NEEDED: Final = {
    "failures": ("id", "match", "why", "remedy", "source", "example"),
    "noise": ("id", "match", "why", "source", "example"),
    "stages": ("id", "title", "stall"),
    "launches": ("id", "match", "source"),
    "versions": ("id", "match"),
    "facts": ("id", "match"),
}


def read(text: str, file: str) -> Parts:
    """Everything usable in `text`, and every problem. A part with a problem is left out."""
    import yaml  # not needed where the shipped files were parsed before

    parts = Parts()
    reader = _Reading(parts, file)
    try:
        root = yaml.compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        said = getattr(error, "problem", None) or str(error).splitlines()[0]
        parts.problems.append(Problem(file, line, column, "yaml", str(said)))
        return parts
    if root is None:
        parts.problems.append(Problem(file, 1, 1, "file", "holds no entries"))
        return parts
    reader.root(root)
    return parts


class _Reading:
    """One walk over one file."""

    def __init__(self, parts: Parts, file: str) -> None:
        self.parts = parts
        self.file = file
        self.seen: set[tuple[str, str]] = set()

    def problem(self, node: Any, name: str, message: str) -> None:
        mark = node.start_mark
        self.parts.problems.append(Problem(self.file, mark.line + 1, mark.column + 1, name, message))

    def root(self, node: Any) -> None:
        if not _is(node, "mapping"):
            self.problem(node, "file", f"must hold some of {', '.join(_SECTIONS)} as keys")
            return
        for name, key, value in self.pairs(node, _SECTIONS, "file"):
            if not _is(value, "sequence"):
                self.problem(key, name, "must be a list of entries")
                continue
            for place, entry in enumerate(value.value):
                self.entry(name, entry, f"{name}[{place}]")

    def pairs(self, node: Any, known: Any, where: str) -> Iterator[tuple[str, Any, Any]]:
        met: set[str] = set()
        for key, value in node.value:
            name = key.value if _is(key, "scalar") else ""
            if name not in known:
                self.problem(key, f"{where}.{name}", f"unknown key{_nearest(name, list(known))}")
            elif name in met:
                self.problem(key, f"{where}.{name}", "stands twice")
            else:
                met.add(name)
                yield name, key, value

    def entry(self, section: str, node: Any, where: str) -> None:
        if not _is(node, "mapping"):
            self.problem(node, where, "must be a mapping")
            return
        before = len(self.parts.problems)
        schema = _SECTIONS[section]
        got: dict[str, Any] = {}
        nodes: dict[str, Any] = {}
        for name, _key, value in self.pairs(node, schema, where):
            got[name], nodes[name] = self.value(schema[name], value, f"{where}.{name}"), value
        for name in _NEEDED[section]:
            if not got.get(name):
                self.problem(node, f"{where}.{name}", "is needed")
        label = got.get("id") or where
        self.check(section, got, nodes, node, str(label))
        if len(self.parts.problems) == before:
            self.keep(section, got)

    def value(self, shape: str, node: Any, where: str) -> Any:
        if shape == _TEXT and _is(node, "scalar"):
            return str(node.value)
        if shape == _FLAG and _is(node, "scalar") and node.value in ("true", "false"):
            return bool(node.value == "true")
        if shape == _LIST and _is(node, "sequence"):
            return tuple(str(item.value) for item in node.value)
        if shape == _CUES and _is(node, "sequence"):
            return tuple(cue for item in node.value if (cue := self.cue(item, where)))
        self.problem(node, where, {_TEXT: "must be text", _FLAG: "must be true or false"}.get(shape, "must be a list"))
        return None

    def cue(self, node: Any, where: str) -> Cue | None:
        if _is(node, "scalar"):
            import yaml

            node = yaml.MappingNode("", [(yaml.ScalarNode("", "match", node.start_mark), node)], node.start_mark)
        if not _is(node, "mapping"):
            self.problem(node, where, "must be a pattern, or a mapping with `match`")
            return None
        got = {name: self.value(_TEXT, value, f"{where}.{name}") for name, _, value in self.pairs(node, _CUE, where)}
        before = len(self.parts.problems)
        nodes = dict.fromkeys(got, node)
        self.check("cue", got, nodes, node, where)
        return _cue(got) if got.get("match") and len(self.parts.problems) == before else None

    def check(self, section: str, got: dict[str, Any], nodes: dict[str, Any], node: Any, label: str) -> None:
        if (name := got.get("id")) and section != "cue":
            if not _ID.match(name):
                self.problem(nodes["id"], f"{label}.id", "may hold small letters, digits, `-`, `_`, `.`")
            elif (section, name) in self.seen:
                self.problem(nodes["id"], f"{label}.id", f"`{name}` stands twice")
            self.seen.add((section, name))
        patterns = {
            key: self.pattern(got[key], nodes[key], f"{label}.{key}") for key in ("match", "not") if got.get(key)
        }
        example, match = got.get("example"), patterns.get("match")
        if example and match and not any(map(match.search, example.splitlines())):
            self.problem(nodes["example"], f"{label}.example", "is not matched by `match`")
        elif example and (no := patterns.get("not")) and any(map(no.search, example.splitlines())):
            self.problem(nodes["example"], f"{label}.example", "is matched by `not`")
        for key, allowed in (("kind", KINDS), ("where", WHERE)):
            if got.get(key) and got[key] not in allowed:
                self.problem(nodes[key], f"{label}.{key}", f"must be one of {', '.join(allowed)}")
        for stage in (*(got.get("stages") or ()), *([got["at"]] if got.get("at") else ())):
            if stage not in STAGES:
                self.problem(
                    nodes.get("stages", node),
                    f"{label}.stages",
                    f"`{stage}` is no stage{_nearest(stage, list(STAGES))}",
                )
        if section == "stages" and got.get("id") and got["id"] not in STAGES:
            self.problem(nodes["id"], f"{label}.id", f"is no stage{_nearest(got['id'], list(STAGES))}")
        if got.get("versions") and not _WINDOW.match(got["versions"].replace(" ", "")):
            self.problem(nodes["versions"], f"{label}.versions", "must look like `>=0.14,<0.18`")
        self.check_more(got, nodes, label, match)

    def check_more(self, got: dict[str, Any], nodes: dict[str, Any], label: str, match: re.Pattern[str] | None) -> None:
        if fix := got.get("fix"):
            verb = _FIX.match(fix)
            if not verb:
                self.problem(
                    nodes["fix"], f"{label}.fix", f"must be one of {', '.join(FIXES)}, with `:value` or `:{{group}}`"
                )
            elif match and (group := re.search(r"\{(\w+)\}", fix)) and group[1] not in match.groupindex:
                self.problem(nodes["fix"], f"{label}.fix", f"names the group `{group[1]}`, which `match` has not")
        for key in ("stall", "repeat"):
            if got.get(key) and not re.fullmatch(r"\d+", got[key]):
                self.problem(nodes[key], f"{label}.{key}", "must be a whole number")
        for place, frame in enumerate(got.get("frames") or ()):
            if not frame.isidentifier():
                self.problem(nodes["frames"], f"{label}.frames[{place}]", "must be the name of a function")

    def pattern(self, text: str, node: Any, where: str) -> re.Pattern[str] | None:
        try:
            compiled = re.compile(text)
        except re.error as error:
            self.problem(node, where, f"is no regular expression: {error}")
            return None
        if compiled.search(""):
            self.problem(node, where, "matches every line")
            return None
        return compiled

    def keep(self, section: str, got: dict[str, Any]) -> None:
        if section == "failures":
            self.parts.failures.append(_failure(got))
        elif section == "noise":
            self.parts.noise.append(_noise(got))
        elif section == "stages":
            self.parts.stages.append(_stage(got))
        else:
            getattr(self.parts, section).append(_cue(got))


def _failure(got: dict[str, Any]) -> Failure:
    return Failure(
        id=got["id"],
        category=got.get("category") or got["id"],
        title=got.get("title") or "",
        kind=got.get("kind") or "cause",
        where=got.get("where") or "exception",
        match=got["match"],
        unless=got.get("not") or "",
        stages=frozenset(got.get("stages") or ()),
        why=_flow(got["why"]),
        remedy=_flow(got["remedy"]),
        source=_flow(got["source"]),
        versions=(got.get("versions") or "").replace(" ", ""),
        fix=got.get("fix") or "",
        example=got["example"].rstrip("\n"),
        fatal=bool(got.get("fatal")),
        outside=bool(got.get("outside")),
        inside=frozenset(got.get("in") or ()),
        at=got.get("at") or "",
        repeat=int(got.get("repeat") or 1),
    )


def _noise(got: dict[str, Any]) -> Noise:
    return Noise(
        id=got["id"],
        match=got["match"],
        unless=got.get("not") or "",
        stages=frozenset(got.get("stages") or ()),
        why=_flow(got["why"]),
        source=_flow(got["source"]),
        versions=(got.get("versions") or "").replace(" ", ""),
        example=got["example"].rstrip("\n"),
        show=bool(got.get("show")),
    )


def _stage(got: dict[str, Any]) -> Stage:
    return Stage(
        id=got["id"],
        title=got["title"],
        stall=float(got["stall"]),
        cues=tuple(got.get("cues") or ()),
        frames=tuple(got.get("frames") or ()),
        hang=got.get("hang") or "",
        advice=_flow(got.get("advice") or ""),
    )


def _cue(got: dict[str, Any]) -> Cue:
    return Cue(
        id=got.get("id") or "",
        match=got["match"],
        versions=(got.get("versions") or "").replace(" ", ""),
        source=_flow(got.get("source") or ""),
        example=(got.get("example") or "").rstrip("\n"),
        engine=got.get("engine") or "",
    )


def _is(node: Any, kind: str) -> bool:
    """Whether a node of the YAML is a scalar, a sequence or a mapping."""
    return bool(node.id == kind)


def _flow(text: str) -> str:
    return " ".join(text.split())


def _nearest(name: str, known: list[str]) -> str:
    # difflib costs 10 ms to load, and only a wrong file needs it
    from difflib import get_close_matches

    near = get_close_matches(name, known, 1)
    return f"; did you mean `{near[0]}`?" if near else ""
