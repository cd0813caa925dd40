"""systemd's way with words: quoting, escapes, specifiers and variables of a command line in a unit file. Pure.

After systemd.syntax(7), systemd.service(5) "COMMAND LINES" and systemd.unit(5) "SPECIFIERS".
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_ESCAPES = {
    "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v",
    "\\": "\\", '"': '"', "'": "'", "s": " ",
}  # fmt: skip
_NUMERIC = re.compile(r"x([0-9a-fA-F]{2})|([0-7]{3})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})")
_VARIABLE = re.compile(r"\$\$|\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_WHOLE_VARIABLE = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")


class Unbalanced(ValueError):
    """A quote was opened and not closed."""


def split(text: str) -> tuple[list[str], bool]:
    """The words of `text`, unquoted and unescaped, and whether an unknown escape was kept as it stands."""
    words: list[str] = []
    word: list[str] | None = None
    quote, unknown, at = "", False, 0
    while at < len(text):
        char = text[at]
        if char == "\\":
            piece, at, known = _unescape(text, at)
            unknown |= not known
            word = [*(word or ()), piece]
            continue
        if quote:
            if char == quote:
                quote = ""
            else:
                word = [*(word or ()), char]
        elif char in "\"'":
            quote, word = char, word or []
        elif char in " \t\n\r":
            if word is not None:
                words.append("".join(word))
            word = None
        else:
            word = [*(word or ()), char]
        at += 1
    if quote:
        raise Unbalanced(text)
    if word is not None:
        words.append("".join(word))
    return words, unknown


def _unescape(text: str, at: int) -> tuple[str, int, bool]:
    """What the backslash at `at` stands for, where reading goes on, and whether it is an escape systemd knows."""
    following = text[at + 1 : at + 2]
    if not following:
        return "", at + 1, False
    if following in _ESCAPES:
        return _ESCAPES[following], at + 2, True
    match = _NUMERIC.match(text, at + 1)
    if match is None:
        return "\\" + following, at + 2, False
    hexadecimal, octal, short, long = match.groups()
    number = int(octal, 8) if octal else int(hexadecimal or short or long, 16)
    return chr(number), match.end(), True


def quoted(word: str) -> str:
    """`word` as it must stand in a transient unit's command line; `$` keeps its meaning, `%` has none."""
    text = word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r")
    return '"' + text.replace("%", "%%") + '"'


def specifiers(text: str, values: Mapping[str, str]) -> str:
    """`text` with `%n` and its like replaced; an unknown one stays."""
    return re.sub(r"%(.)", lambda m: "%" if m[1] == "%" else values.get(m[1], m[0]), text)


def expand(words: list[str], environment: Mapping[str, str]) -> list[str]:
    """`$NAME` as a word of its own becomes as many words as its value has; `${NAME}` is replaced inside a word; an unset
    variable is empty; `$$` is a dollar."""
    expanded: list[str] = []
    for word in words:
        whole = _WHOLE_VARIABLE.fullmatch(word)
        if whole:
            expanded.extend(split(environment.get(whole[1], ""))[0])
        else:
            expanded.append(_VARIABLE.sub(lambda m: "$" if m[0] == "$$" else environment.get(m[1], ""), word))
    return expanded


_SPAN = re.compile(r"([0-9]*\.?[0-9]+)\s*([a-zµ]*)", re.IGNORECASE)
_SECONDS = {
    "": 1.0, "s": 1.0, "sec": 1.0, "second": 1.0, "seconds": 1.0, "m": 60.0, "min": 60.0, "minute": 60.0,
    "minutes": 60.0, "h": 3600.0, "hr": 3600.0, "hour": 3600.0, "hours": 3600.0, "d": 86400.0, "day": 86400.0,
    "days": 86400.0, "w": 604800.0, "week": 604800.0, "weeks": 604800.0, "ms": 1e-3, "msec": 1e-3, "us": 1e-6,
    "usec": 1e-6, "µs": 1e-6,
}  # fmt: skip


def seconds(text: str) -> float:
    """A time span such as `90`, `5min 20s`, `infinity`; raises ValueError for anything else."""
    text = text.strip()
    if text == "infinity":
        return float("inf")
    total, at = 0.0, 0
    while at < len(text):
        match = _SPAN.match(text, at)
        if match is None or match[2].lower() not in _SECONDS:
            raise ValueError(text)
        total += float(match[1]) * _SECONDS[match[2].lower()]
        at = match.end()
        while at < len(text) and text[at] == " ":
            at += 1
    if not text:
        raise ValueError(text)
    return total
