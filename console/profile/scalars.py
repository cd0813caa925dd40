"""How the text of one YAML scalar is read, given what the schema expects: strict, and with a sentence when it is not.

A *generic* place (a value under `serve.flags`, for instance, which may be a switch, a number or text) reads a scalar
without quotes so: `true` and `false` are switches, `12` and `-3` are whole numbers, `0.93` is a number, everything else
is text as written, so that `0123456`, `1e-3`, `0x10` and `12:30` reach the command line untouched. What other YAML
readers take for a switch (`on`, `yes`, `True`, …) or for nothing (`null`, `~`) is refused there: quotes make it text.
A scalar in quotes is always text.
"""

from __future__ import annotations

import math
import re
from typing import TypeAlias

from console.profile.yamltree import Scalar

Plain: TypeAlias = bool | int | float | str | None

_INT = re.compile(r"-?(?:0|[1-9][0-9]*)\Z")
_FLOAT = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?\Z")
_POINT = re.compile(r"-?(?:0|[1-9][0-9]*)\.[0-9]+\Z")
_SWITCH_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false"})
_NOTHING = frozenset({"", "~", "null", "Null", "NULL"})
_LARGEST = 2**63 - 1


class Unreadable(ValueError):
    """The scalar is not what the schema expects; the message says what to write."""


def is_nothing(scalar: Scalar) -> bool:
    """True for an absent value and for the ways YAML writes nothing."""
    return scalar.plain and scalar.text in _NOTHING


def read_bool(scalar: Scalar) -> bool:
    if scalar.plain and scalar.text in ("true", "false"):
        return scalar.text == "true"
    if scalar.text.lower() in ("true", "false") and not scalar.plain:
        raise Unreadable(f"write {scalar.text.lower()} without quotes")
    raise Unreadable(f"write true or false, not {shown(scalar)}")


def read_int(scalar: Scalar) -> int:
    """A whole decimal number. Refuses what YAML 1.1 would silently turn into another number."""
    text = scalar.text
    if not scalar.plain:
        raise Unreadable(
            f"a whole number is expected; write {text} without quotes" if _INT.match(text) else _not_int(scalar)
        )
    if not _INT.match(text):
        raise Unreadable(_not_int(scalar))
    if len(text) > 20 or abs(int(text)) > _LARGEST:
        raise Unreadable(f"the number {text[:24]} is too large")
    return int(text)


def _not_int(scalar: Scalar) -> str:
    text = scalar.text
    bare = text.replace("_", "")
    if "_" in text and _INT.match(bare):
        return f"write {bare}, without underscores"
    if re.fullmatch(r"[-+]?0[0-9]+", text):
        return (
            f"write the number in decimal without a leading zero ({text.lstrip('+-').lstrip('0') or '0'}?), not {text}"
        )
    if re.fullmatch(r"[-+]?0[oxb][0-9a-fA-F]+", text):
        return f"write the number in decimal, not {text}"
    if re.fullmatch(r"[0-9]+(:[0-9]+)+", text):
        return f"a whole number is expected, not the time {text}"
    if text.startswith("+") and _INT.match(text[1:]):
        return f"write {text[1:]}, without the sign"
    if _FLOAT.match(text):
        return f"a whole number is expected, not {text}"
    return f"a whole number is expected, not {shown(scalar)}"


def read_float(scalar: Scalar) -> float:
    text = scalar.text
    if not scalar.plain:
        hint = f"write {text} without quotes" if _FLOAT.match(text) else f"a number is expected, not {shown(scalar)}"
        raise Unreadable(hint)
    if _FLOAT.match(text):
        value = float(text)
        if math.isfinite(value):
            return value
        raise Unreadable(f"the number {text[:24]} is too large")
    bare = text.replace("_", "")
    if "_" in text and _FLOAT.match(bare):
        raise Unreadable(f"write {bare}, without underscores")
    if re.fullmatch(r"-?\.[0-9]+", text):
        raise Unreadable(f"write {text.replace('.', '0.', 1)}")
    if re.fullmatch(r"[-+]?\.(?:inf|nan)|[-+]?(?:inf|nan|infinity)", text, re.IGNORECASE):
        raise Unreadable(f"a finite number is expected, not {text}")
    if re.fullmatch(r"[-+]?0[0-9]+(?:\.[0-9]*)?", text):
        raise Unreadable(f"write the number without a leading zero, not {text}")
    raise Unreadable(f"a number is expected, not {shown(scalar)}")


def read_text(scalar: Scalar) -> str:
    """The text exactly as written; nothing at all must be written as quotes."""
    if is_nothing(scalar):
        raise Unreadable(f'text is expected; write "{scalar.text}" in quotes if that is meant, or leave the key out')
    return scalar.text


def read_generic(scalar: Scalar) -> bool | int | float | str:
    """A scalar where switch, number and text are all allowed; see the module's docstring."""
    text = scalar.text
    if not scalar.plain:
        return text
    if text in ("true", "false"):
        return text == "true"
    if is_nothing(scalar):
        raise Unreadable('a value is expected; write "" in quotes for an empty text, or leave the key out')
    if text.lower() in _SWITCH_WORDS:
        raise Unreadable(f'write true or false, or "{text}" in quotes if the text is meant')
    if _INT.match(text) and len(text) <= 20 and abs(int(text)) <= _LARGEST:
        return int(text)
    if _POINT.match(text) and math.isfinite(float(text)):
        return float(text)
    return text


def shown(scalar: Scalar) -> str:
    """A scalar as an error message quotes it: its beginning, or the word nothing."""
    if is_nothing(scalar):
        return "nothing"
    text = scalar.text if len(scalar.text) <= 40 else scalar.text[:39] + "…"
    return repr(text) if not scalar.plain or not text.isprintable() else text
