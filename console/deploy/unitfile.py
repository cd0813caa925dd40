"""A systemd service file read back: its settings, the argv of ExecStart= and the environment, unquoted as systemd does.

Pure, lenient and lossy on purpose: it reads units that people wrote by hand, for showing what a redeploy changes. What
it cannot read is left out; it never raises. Syntax: systemd.syntax(7), systemd.service(5) "Command lines".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_ESCAPES = {
    "a": "\a",
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
    "s": " ",
    "\\": "\\",
    '"': '"',
    "'": "'",
}
_CODE = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-7]{3})")


@dataclass(frozen=True, slots=True)
class UnitFile:
    """The settings in order of the file, as (section, name, value) with continued lines joined; and what is asked most."""

    settings: tuple[tuple[str, str, str], ...] = ()
    argv: tuple[str, ...] = ()
    """Of the last ExecStart=, without systemd's prefixes (`-`, `@`, `+`, …)."""
    environment: Mapping[str, str] = field(default_factory=dict)

    def values(self, section: str, name: str) -> tuple[str, ...]:
        """All values of a setting since it was last emptied."""
        found: list[str] = []
        for where, key, value in self.settings:
            if (where, key) == (section, name):
                found = [*found, value] if value else []
        return tuple(found)


def parse_unit(text: str) -> UnitFile:
    """The unit file in `text`."""
    settings = tuple(_settings(text))
    plain = UnitFile(settings)
    commands = plain.values("Service", "ExecStart")
    argv = tuple(_argument(word, first=n == 0) for n, word in enumerate(split_words(commands[-1]))) if commands else ()
    environment: dict[str, str] = {}
    for line in plain.values("Service", "Environment"):
        for word in split_words(line):
            name, equals, value = word.replace("%%", "%").partition("=")
            if equals:
                environment[name] = value
    return UnitFile(settings, argv, environment)


def _settings(text: str) -> list[tuple[str, str, str]]:
    found: list[tuple[str, str, str]] = []
    section, held = "", ""
    for raw in text.split("\n"):  # systemd knows no other line ends
        line = raw.strip()
        if not held and (not line or line[0] in "#;"):
            continue
        if held and line[:1] in ("#", ";"):
            continue  # systemd skips comments between continued lines
        if raw.endswith("\\"):
            held += raw[:-1].lstrip() + " "
            continue
        line, held = (held + raw.strip()).strip(), ""
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1]
        else:
            name, equals, value = line.partition("=")
            if equals:
                found.append((section, name.strip(), value.strip()))
    return found


def split_words(text: str) -> tuple[str, ...]:
    """The words of a setting, unquoted: blanks separate, single and double quotes hold together, C escapes count."""
    words: list[str] = []
    word: list[str] = []
    started = False
    quote = ""
    at = 0
    while at < len(text):
        char = text[at]
        if char == "\\" and at + 1 < len(text):
            piece, width = _escape(text, at + 1)
            word.append(piece)
            started = True
            at += 1 + width
            continue
        if quote:
            if char == quote:
                quote = ""
            else:
                word.append(char)
        elif char in "\"'":
            quote, started = char, True
        elif char in " \t\n":
            if started:
                words.append("".join(word))
            word, started = [], False
        else:
            word.append(char)
            started = True
        at += 1
    if started:
        words.append("".join(word))
    return tuple(words)


def _escape(text: str, at: int) -> tuple[str, int]:
    """The character that the escape at `at` (after the backslash) means, and its width."""
    char = text[at]
    if char in _ESCAPES:
        return _ESCAPES[char], 1
    code = _CODE.match(text, at)
    if code is None:
        return "\\" + char, 1
    if code[4]:
        return chr(int(code[4], 8)), 3
    digits = code[1] or code[2] or code[3]
    number = int(digits, 16)
    return (chr(number) if number < 0x110000 else "\ufffd"), len(digits) + 1


def _argument(word: str, *, first: bool) -> str:
    if first:
        return word.lstrip("-@+!:|").replace("%%", "%")
    return word.replace("$$", "$").replace("%%", "%")
