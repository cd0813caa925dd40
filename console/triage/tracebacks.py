"""Tracebacks as units: fed line by line, put apart by process, ended by the exception's own line and its message.

A traceback's lines belong to the process in their prefix. Lines without any prefix belong to the one without, or, where a
framework prefixes only the first line (SGLang), to the traceback that was opened last. A record of the same process that
is louder or quieter than the traceback is not part of it.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from console.triage.prefix import QUIET, Line

HEAD: Final = "Traceback (most recent call last)"
MOST_OPEN: Final = 64
MOST_STRAY: Final = 60
"""Foreign lines after which an open traceback without an end is given up."""
MOST_MESSAGE: Final = 80
PATIENCE: Final = 200
"""Lines of others after which a traceback counts as ended."""
_CHAIN: Final = ("During handling of the above exception", "The above exception was the direct cause")
_NAME = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?=:\s|:?\s*\Z)")
_LOUD_NAME = re.compile(r"(?:Error|Exception|Interrupt|Exit|Timeout|Empty|Full|OutOfResources|Group|Fault|Warning)\Z")
_FUNCTION = re.compile(r", in (?:[\w.<>]+\.)?([A-Za-z_]\w*)\s*\Z")
_SPECULATIVE = re.compile(r"/(?:spec_decode|speculative)/|/\w*(?:eagle|_mtp|medusa)\w*\.py")
SPECULATIVE: Final = "speculative"
"""Stands among a traceback's functions when one of its files belongs to speculative decoding."""
_FUNCTION_RAW = re.compile(_FUNCTION.pattern.encode())
_SPECULATIVE_RAW = re.compile(_SPECULATIVE.pattern.encode())
_GLUE = re.compile(r"\A.{0,160}?" + re.escape(HEAD))


def alike(lead: str) -> re.Pattern[str]:
    """A prefix like this one: another number in it, another indentation of that number."""
    numbers = re.sub(r"\\?\d+", r"\\d+", re.escape(lead))
    return re.compile(r"\A" + re.sub(r"(?:\\ )+(?=\\d\+)", r"\\s*", numbers))


def exception_name(text: str, *, inside: bool = False) -> str | None:
    """The name in an exception's line, `pkg.SomeError: said this` or a bare `KeyboardInterrupt`. `inside` a traceback any
    name with a capital will do; elsewhere it must end as exceptions do."""
    found = _NAME.match(text)
    if not found:
        return None
    name = found[0]
    last = name.rpartition(".")[2]
    if _LOUD_NAME.search(last) or (inside and (last[:1].isupper() or "." in name) and len(name) < 120):
        return name
    return None


@dataclass(slots=True)
class Unit:
    key: str
    opener: Line
    first: int
    handled: bool = False
    state: str = "frames"
    strays: int = 0
    last: int = 0
    """Number of its latest line."""
    bare: bool = False
    """Its lines carry no prefix although its first did."""
    functions: deque[str] = field(default_factory=lambda: deque(maxlen=64))
    speculative: bool = False
    recent: deque[str | bytes] = field(default_factory=lambda: deque(maxlen=3))
    """Its latest lines, bytes where nobody had to look at them."""
    message: int = 0
    learned: re.Pattern[str] | None = None
    """An unknown prefix before the word Traceback; lines that follow may carry it too."""

    @property
    def places(self) -> set[str]:
        """The names of its functions, and SPECULATIVE."""
        return {*self.functions, SPECULATIVE} if self.speculative else set(self.functions)

    def above(self) -> list[str]:
        """Its latest lines as text."""
        return [line if isinstance(line, str) else line.decode("utf-8", "replace") for line in self.recent]


@dataclass(frozen=True, slots=True)
class Lead:
    unit: Unit
    keyed: bool
    """The prefix names a process."""


class Tracebacks:
    """`feed` tells what a line is for the open tracebacks: "head", "frame", "exception", "message" or None (not theirs)."""

    def __init__(self) -> None:
        self.open: dict[str, Unit] = {}
        self.last: str = ""
        self.look = 0
        self.leads: dict[bytes, Lead] = {}
        """By a whole prefix: whose frames come with it."""

    def __bool__(self) -> bool:
        return bool(self.open)

    def close(self, key: str) -> None:
        self.open.pop(key, None)

    def feed(self, number: int, line: Line, *, handled: bool = False) -> tuple[str | None, Unit | None, str]:
        """What the line is, to which unit, and its text with a learned prefix removed."""
        if number >= self.look:
            self._expire(number)
        if HEAD in line.text:
            return "head", self._start(number, line, handled), line.text
        unit = self._owner(line)
        if unit is None:
            return None, None, line.text
        unit.last = number
        text = unit.learned.sub("", line.text, count=1) if unit.learned else line.text
        if unit.state == "frames":
            return self._in_frames(unit, line, text)
        return self._in_message(unit, line, text)

    def _expire(self, number: int) -> None:
        self.look = number + PATIENCE // 4
        for key in [key for key, unit in self.open.items() if max(unit.first, unit.last) < number - PATIENCE]:
            del self.open[key]

    def knows(self, raw: str, line: Line) -> None:
        """Remember the prefix of a traceback's head or frame; what follows the same one and is indented is its next frame."""
        unit = self.open.get(line.key)
        if (
            unit is None
            or unit.state != "frames"
            or unit.learned
            or line.level is None
            or line.source in (None, "uvicorn")
        ):
            return
        if len(self.leads) >= MOST_OPEN:
            self.leads.clear()
        self.leads[raw[: len(raw) - len(line.text)].encode()] = Lead(unit, bool(line.key))

    def frame(self, number: int, lead: Lead, text: bytes) -> bool:
        """Take one frame by its known prefix; False when it must be looked at as any line."""
        if number >= self.look:
            self._expire(number)
        unit = lead.unit
        if unit.state != "frames" or self.open.get(unit.key) is not unit:
            return False
        unit.last = number
        place = text.rfind(b", in ")
        if place >= 0 and (found := _FUNCTION_RAW.match(text, place)):
            unit.functions.append(found[1].decode())
            unit.speculative = unit.speculative or bool(_SPECULATIVE_RAW.search(text, 0, place))
            unit.bare = not lead.keyed and bool(unit.key)
        if not text.isspace():
            unit.recent.append(text)
        return True

    def start_message(self, number: int, line: Line, handled: bool) -> Unit:
        """An exception's line without a traceback: what follows may be its message."""
        unit = Unit(line.key, line, number, handled, state="message")
        self._keep(unit)
        return unit

    def _start(self, number: int, line: Line, handled: bool) -> Unit:
        old = self.open.get(line.key)
        chained = old is not None and old.state == "between"
        unit = Unit(line.key, line, number, handled or bool(chained and old and old.handled))
        before = _GLUE.match(line.text)
        lead = line.text[: before.end() - len(HEAD)] if before else ""
        if lead and not lead.rstrip().endswith(":"):
            unit.learned = alike(lead)
        self._keep(unit)
        return unit

    def _keep(self, unit: Unit) -> None:
        self.open.pop(unit.key, None)
        if len(self.open) >= MOST_OPEN:
            del self.open[next(iter(self.open))]
        self.open[unit.key] = unit
        self.last = unit.key

    def _owner(self, line: Line) -> Unit | None:
        unit = self.open.get(line.key)
        if unit is not None:
            return unit
        if line.level:
            return None
        # no prefix at all, or only that of who passes the lines on: continues the last one that is continued so, or whose
        # prefixed first line was its only one
        unit = self.open.get(self.last)
        if unit is not None and line.key in ("", unit.opener.outer) and (unit.bare or not unit.functions):
            return unit
        return None

    def _in_frames(self, unit: Unit, line: Line, text: str) -> tuple[str | None, Unit | None, str]:
        same = line.level == unit.opener.level and (line.source == unit.opener.source or not line.source)
        if not same and not (line.level is None and (unit.bare or not unit.functions)):
            return self._stray(unit, text)
        if not text or text[0] in " \t|+" or text.startswith('File "'):
            if found := _FUNCTION.search(text):
                unit.functions.append(found[1])
                unit.speculative = unit.speculative or bool(_SPECULATIVE.search(text, 0, found.start()))
                unit.bare = line.key != unit.key
            if text.strip():
                unit.recent.append(text)
            return "frame", unit, text
        if exception_name(text, inside=True):
            unit.state, unit.message = "message", 0
            return "exception", unit, text
        return self._stray(unit, text)

    def _stray(self, unit: Unit, text: str) -> tuple[None, None, str]:
        unit.strays += 1
        if unit.strays > MOST_STRAY:
            self.close(unit.key)
        return None, None, text

    def _in_message(self, unit: Unit, line: Line, text: str) -> tuple[str | None, Unit | None, str]:
        if text.startswith(_CHAIN):
            unit.state = "between"
            return "message", unit, text
        if unit.state == "between":
            if not text.strip():
                return "message", unit, text
            unit.strays += 1
            if unit.strays > MOST_STRAY:
                self.close(unit.key)
            return None, None, text
        unit.message += 1
        other = line.level != unit.opener.level or (line.source or None) != (unit.opener.source or None)
        raw = unit.opener.level is None and (line.level in QUIET or line.source is not None)
        if unit.bare and line.level is None:
            other = False
        if other or raw or unit.message > MOST_MESSAGE or text.startswith("Process "):
            self.close(unit.key)
            return None, None, text
        return "message", unit, text
