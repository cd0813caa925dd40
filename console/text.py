"""Text that is safe to show: the sanitiser for what a node says, the Secret type, redaction, and figures in words.

Pure. Everything that came from a node passes `clean` before it reaches a terminal: Textual 8 and a bare terminal alike
hand raw escape sequences through, and logs carry what users of the model typed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NoReturn

MASK = "••••••"

# CSI, OSC / DCS / PM / APC / SOS up to their terminator, then any other two-byte escape. An unterminated string
# sequence swallows the rest of the line, as a terminal would.
_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"
    r"|\x1b[\]PX^_][^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c|$)"
    r"|\x9b[0-?]*[ -/]*[@-~]"
    r"|[\x90\x98\x9d\x9e\x9f][^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c|$)"
    r"|\x1b[ -/]*[0-~]?"
)
# C0 except tab and newline, DEL, C1, zero-width and bidirectional controls, line/paragraph separators, BOM.
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]"
)


def clean(text: str) -> str:
    """`text` without escape sequences, control, zero-width and bidirectional characters; tab and newline stay.

    Idempotent: `clean(clean(t)) == clean(t)`.
    """
    if text.isascii() and text.isprintable():
        return text
    before = None
    while before != text:
        before = text
        text = _CONTROLS.sub("", _ESCAPES.sub("", text))
    return text


class Secret:
    """A value that cannot be printed, formatted, compared by accident or pickled; `reveal()` is the only way in."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The value itself. Call it only where the bytes are written to a stdin or a 0600 file."""
        return self._value

    def __repr__(self) -> str:
        return f"Secret({MASK})"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return MASK

    def __bool__(self) -> bool:
        return bool(self._value)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Secret is never serialised")


_TOKEN_SHAPES = re.compile(
    r"\bhf_[A-Za-z0-9]{8,}|\b(?:sk|ghp|gho|glpat)[-_][A-Za-z0-9_-]{16,}"
    r"|(?i:(?<=bearer )[A-Za-z0-9._~+/=-]{8,})"
    r"|(?i:(?<=--api-key[= ])\S+|(?<=--hf-token[= ])\S+)"
)


def redact(text: str, secrets: Iterable[Secret] = ()) -> str:
    """`text` with every known secret and everything shaped like a token replaced by a mask of fixed width."""
    for secret in secrets:
        if secret:
            text = text.replace(secret.reveal(), MASK)
    return _TOKEN_SHAPES.sub(MASK, text)


def size(count: float) -> str:
    """Bytes in decimal units, as disks and downloads are sold: `540.1 GB`."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(value) < 999.95 or unit == "TB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    raise AssertionError("unreachable")


def gib(count: float) -> str:
    """Bytes in binary GiB, as GPU memory is counted: `68.1 GiB`."""
    return f"{count / 2**30:.1f} GiB"


def duration(seconds: float) -> str:
    """A span for people: `0.3s`, `41.7s`, `2:31`, `1:02:03`."""
    if seconds < 60:
        return f"{seconds:.1f}s"
    whole = int(seconds)
    hours, rest = divmod(whole, 3600)
    minutes, secs = divmod(rest, 60)
    return f"{hours}:{minutes:02}:{secs:02}" if hours else f"{minutes}:{secs:02}"


def headline(text: str, width: int = 160) -> str:
    """The first line of `text`, cut at a word with `…` where it is longer than `width`."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    if len(line) <= width:
        return line
    cut = line.rfind(" ", width // 2, width)
    return line[: cut if cut > 0 else width - 1].rstrip(" ,;:") + " …"


def plural(count: int, noun: str) -> str:
    """`1 GPU`, `8 GPUs`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
