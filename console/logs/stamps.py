"""The time that a log line tells itself. Pure.

vLLM writes month and day without a year, others write ISO 8601 or syslog's form; a time without a zone is taken as local,
one without a year as the latest that is not after `now`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import datetime

from console.logs.linefile import LineFile

_ISO = re.compile(r"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,]\d+)?(Z|[+-]\d\d:?\d\d)?")
_SHORT = re.compile(r"(?<!\d)(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)(?!\d)")
_SYSLOG = re.compile(r"\b(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) ([ \d]\d) (\d\d):(\d\d):(\d\d)")
_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
LOOKED_AT = 200
"""Characters from a line's start in which a time counts as the line's own."""
_NEAR = 200
"""Lines that are looked at to find one that tells a time."""


def stamp(text: str, now: float | None = None) -> float | None:
    """UNIX time of a line, None when it tells none."""
    text = text[:LOOKED_AT]
    try:
        if found := _ISO.search(text):
            return _iso(found)
        if found := _SHORT.search(text):
            month, day, hour, minute, second = (int(part) for part in found.groups())
        elif found := _SYSLOG.search(text):
            month = _MONTHS.index(found[1]) + 1
            day, hour, minute, second = (int(part) for part in found.groups()[1:])
        else:
            return None
        return _with_year(month, day, hour, minute, second, time.time() if now is None else now)
    except (ValueError, OverflowError):
        return None


def clock(text: str) -> str | None:
    """`HH:MM:SS` of a line as it stands there, None when it tells none."""
    text = text[:LOOKED_AT]
    if found := _ISO.search(text):
        return f"{found[4]}:{found[5]}:{found[6]}"
    if found := _SHORT.search(text):
        return f"{found[3]}:{found[4]}:{found[5]}"
    return f"{found[3]}:{found[4]}:{found[5]}" if (found := _SYSLOG.search(text)) else None


def newest(log: LineFile) -> float | None:
    """The last time that the log tells."""
    offset = log.size
    for _ in range(_NEAR):
        if offset <= 0:
            return None
        offset = log.start_of(offset - 1)
        if (when := stamp(log.line_at(offset))) is not None:
            return when
    return None


def since(log: LineFile, moment: float) -> int | None:
    """Offset of the first line that came at `moment` or later: by when it came here where that is known, else by the
    lines' own times, which are taken to rise. None where neither is known."""
    known = log.since(moment)
    if known is not None:
        return known
    last = newest(log)
    if last is None:
        return None
    if last < moment:
        return log.size
    low, high = 0, log.segments  # the first segment behind which, and in which, all times are `moment` or later
    while low < high:
        middle = (low + high) // 2
        probe = middle
        first = None
        while probe < high and (first := next((when for _, when in _dated(log, probe)), None)) is None:
            probe += 1
        if first is not None and first < moment:
            low = probe + 1
        else:
            high = middle
    for segment in range(max(0, low - 1), log.segments):
        for offset, when in _dated(log, segment):
            if when >= moment:
                return offset
    return log.size


def _dated(log: LineFile, segment: int) -> Iterator[tuple[int, float]]:
    """The lines of a segment that tell a time."""
    begin, block = log.block(segment, segment + 1)
    at = 0
    while 0 <= at < len(block):
        end = block.find(b"\n", at)
        text = block[at : min(end if end >= 0 else len(block), at + LOOKED_AT)].decode("utf-8", "replace")
        if (when := stamp(text)) is not None:
            yield begin + at, when
        at = end + 1 if end >= 0 else len(block)


def _iso(found: re.Match[str]) -> float:
    year, month, day, hour, minute, second = (int(part) for part in found.groups()[:6])
    text = f"{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{(found[7] or '').replace('Z', '+00:00')}"
    return datetime.fromisoformat(text).timestamp()


def _with_year(month: int, day: int, hour: int, minute: int, second: int, now: float) -> float:
    year = time.localtime(now).tm_year
    for candidate in (year, year - 1):
        when = time.mktime((candidate, month, day, hour, minute, second, 0, 1, -1))
        if when <= now + 86_400:
            return when
    return when
