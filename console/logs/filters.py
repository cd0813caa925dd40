"""What of a log is shown: include and exclude patterns, process, level, noise; as data, and saved as presets. Pure.

A pattern is plain text unless it is written /like this/, then it is a regular expression; case does not matter. A line is
shown when it matches one of `include` (or there is none), none of `exclude`, the process and the level where they are
given, and is no noise. A line that matches noise and looks like an error is never hidden.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from console.errors import InvalidFile, UsageError
from console.profile.yamlio import Loc, decode, read_bounded

Level = Literal["", "warning", "error"]
LEVELS: tuple[Level, ...] = ("", "warning", "error")
PRESETS = Path(__file__).parent.parent.parent / "profiles" / "filters.yaml"

LOUD = r"\bERROR\b|\bCRITICAL\b|\bFATAL\b|Traceback \(most recent|(?:Error|Exception)\b|fatal|Killed|Bus error"
_LEVEL_PATTERN: dict[Level, str] = {"": "", "warning": rf"\bWARN(?:ING)?\b|{LOUD}", "error": LOUD}


@dataclass(frozen=True, slots=True)
class Filter:
    """One filter. `name` is the preset it came from, or empty; `reason` says what it is for."""

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    process: str = ""
    level: Level = ""
    noise: bool = False
    """True shows noise too."""
    name: str = ""
    reason: str = ""

    def __str__(self) -> str:
        words = [*self.include, *(f"!{item}" for item in self.exclude)]
        words += [f"process {self.process}"] if self.process else []
        words += [f"{self.level}+"] if self.level else []
        return " ".join(words) or "none"


@dataclass(frozen=True, slots=True)
class Patterns:
    """A filter as regular expressions for a matcher; empty tuples and texts ask nothing."""

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    process: str = ""
    level: str = ""
    loud: str = field(default=LOUD)


def compiled(wanted: Filter) -> Patterns:
    """The patterns of `wanted`. Raises UsageError for a regular expression that is none, with what is wrong in it."""
    return Patterns(
        include=tuple(expression(item) for item in wanted.include),
        exclude=tuple(expression(item) for item in wanted.exclude),
        process=rf"\({re.escape(wanted.process)}\b|\b{re.escape(wanted.process)}\b" if wanted.process else "",
        level=_LEVEL_PATTERN[wanted.level],
    )


def expression(text: str) -> str:
    """The regular expression that a filter's text means: `/…/` as it is, all else as plain text; case ignored."""
    body = text[1:-1] if len(text) > 2 and text.startswith("/") and text.endswith("/") else re.escape(text)
    try:
        re.compile(body)
    except re.error as error:
        raise UsageError(
            f"{text} is no regular expression: {error}", "without the slashes it is taken as plain text"
        ) from error
    return f"(?i:{trimmed(body)})"


def trimmed(pattern: str) -> str:
    """The pattern without what cannot decide whether a line matches: `.*` at its ends, a last `+`.

    Each of them would make the matcher answer for every byte of a line.
    """
    before = ""
    while before != pattern:
        before = pattern
        for head in ("^.*", ".*"):
            if pattern.startswith(head) and pattern[len(head) : len(head) + 1] not in ("?", "+", ""):
                pattern = pattern[len(head) :]
        for tail in (".*?", ".*", "+?", "+"):
            rest = pattern.removesuffix(tail)
            if rest and rest != pattern and (len(rest) - len(rest.rstrip("\\"))) % 2 == 0:
                pattern = rest
                break
    return pattern


def parse(text: str, base: Filter | None = None) -> Filter:
    """The filter that an operator typed: words include, `!word` excludes, quotes hold words together.

    Raises UsageError for an open quote or a bad expression.
    """
    words = [_word(word) for word in _WORDS.findall(text)]
    made = replace(
        base or Filter(),
        include=tuple(word for word in words if not word.startswith("!")),
        exclude=tuple(word[1:] for word in words if word.startswith("!") and len(word) > 1),
        name="",
    )
    compiled(made)
    return made


_WORDS = re.compile(r"""!?/(?:[^/\\]|\\.)+/(?=\s|\Z)|!?"[^"]*"(?=\s|\Z)|!?'[^']*'(?=\s|\Z)|\S+""")


def _word(text: str) -> str:
    mark, body = ("!", text[1:]) if text.startswith("!") else ("", text)
    if body[:1] in ("'", '"'):
        if len(body) < 2 or body[-1] != body[0]:
            raise UsageError(f"{text}: no closing quotation mark", "close the quote, or write the word without one")
        body = body[1:-1]
    return mark + body


class _Preset(BaseModel):
    model_config = ConfigDict(extra="forbid")

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    process: str = ""
    level: Level = ""
    noise: bool = False
    reason: str = ""


def load_presets(path: Path = PRESETS) -> tuple[Filter, ...]:
    """The saved filters of a file, in its order. Raises InvalidFile with every problem."""
    return parse_presets(read_bounded(path), str(path))


def parse_presets(source: str | bytes, file: str) -> tuple[Filter, ...]:
    """The saved filters that a file's text holds; of one with nothing but comments none. Raises InvalidFile."""

    def bad_patterns(data: object) -> Iterator[tuple[Loc, str]]:
        for name, preset in data.items() if isinstance(data, dict) else ():
            for key in ("include", "exclude"):
                for place, text in enumerate(preset.get(key, ())):
                    try:
                        expression(str(text))
                    except UsageError as error:
                        yield (name, key, place), error.message

    text = source if isinstance(source, str) else source.decode("utf-8", "replace")
    if all(not line.strip() or line.lstrip().startswith("#") for line in text.splitlines()):
        return ()
    presets, problems = decode(source, dict[str, _Preset], file=file, rules=bad_patterns)
    if problems or presets is None:
        raise InvalidFile(problems)
    return tuple(Filter(name=name, **preset.model_dump()) for name, preset in presets.items())


def presets(own: Path | None = None) -> dict[str, Filter]:
    """The saved filters by name: the operator's own file before ours, where there is one. Raises InvalidFile."""
    mine = load_presets(own) if own is not None and own.is_file() else ()
    return {
        item.name: item
        for item in (*mine, *(item for item in load_presets() if item.name not in {m.name for m in mine}))
    }


def preset(name: str, own: Path | None = None) -> Filter:
    """The saved filter called `name`: what `@name` in a log and `relaunch logs --filter name` mean. Raises UsageError."""
    known = presets(own)
    if name not in known:
        raise UsageError(f"there is no preset {name!r}", f"there are {', '.join(known)}")
    return known[name]


def understood(text: str, base: Filter | None = None, own: Path | None = None) -> Filter:
    """What an operator typed, `@name` first if a preset is meant: `@errors nccl !"shm broadcast"`. Raises UsageError."""
    if not text.startswith("@"):
        return parse(text, base)
    name, _, rest = text[1:].partition(" ")
    chosen = preset(name, own)
    more = parse(rest, chosen)
    return replace(more, include=chosen.include + more.include, exclude=chosen.exclude + more.exclude, name=name)
