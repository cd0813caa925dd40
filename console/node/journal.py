"""The journal of a unit as entries with cursors: followed from a place, bound to one invocation, resumed exactly.

`journalctl` runs on the node as an attached helper and prints one JSON object per entry; nothing is searched or formatted
there. An entry's cursor names its place for ever, so `follow(..., cursor=last.cursor)` after a lost link goes on with the
very next entry. journald's JSON has traps that `parse_entry` takes: a message that is no UTF-8 is a list of bytes, a field
that occurs more than once is a list of values, a field over 4 KiB is null unless asked with --all.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from console.errors import UsageError
from console.node.base import Argv, Line, Node, capture
from console.node.systemd import unit_name

_FIELDS = "MESSAGE,PRIORITY,_PID,SYSLOG_IDENTIFIER,_SYSTEMD_INVOCATION_ID,INVOCATION_ID"
_INVOCATION = re.compile(r"[0-9a-f]{32}")
_CURSOR = re.compile(r"[A-Za-z0-9=;:_-]+")
LONGEST_ENTRY = 4 << 20
"""Characters of one JSON line that are kept; what is longer is dropped and counted as one entry with a note in it."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One journal entry. `time` is the journal's UNIX time in seconds; `pid` and `priority` are None where absent."""

    cursor: str
    time: float
    message: str
    pid: int | None
    priority: int | None
    source: str = ""
    """The program's name in the log (SYSLOG_IDENTIFIER); `systemd` for what the service manager says of the unit."""
    invocation: str = ""


def _choose(unit: str, invocation: str | None) -> tuple[str, ...]:
    """The matches: what the unit's processes said, and what systemd said about it."""
    if invocation is None:
        return ("-u", unit_name(unit))
    if not _INVOCATION.fullmatch(invocation):
        raise UsageError(f"{invocation!r} is no invocation id")
    return (f"_SYSTEMD_INVOCATION_ID={invocation}", "+", f"INVOCATION_ID={invocation}")


def entries_call(
    unit: str,
    *,
    invocation: str | None = None,
    cursor: str | None = None,
    lines: int | None = None,
    follow: bool = True,
    this_boot: bool = False,
) -> Argv:
    """The journalctl that prints the unit's entries after `cursor`, or the last `lines` of them, or all."""
    if cursor is not None and not _CURSOR.fullmatch(cursor):
        raise UsageError(f"{cursor!r} is no journal cursor")
    return (
        "journalctl", "--no-pager", "--quiet", "--all", "-o", "json", f"--output-fields={_FIELDS}",
        *(("-f",) if follow else ()),
        *(("-b",) if this_boot else ()),
        f"--lines={'all' if lines is None else lines}",
        *((f"--after-cursor={cursor}",) if cursor is not None else ()),
        *_choose(unit, invocation),
    )  # fmt: skip


def _text(value: Any) -> str:
    """A field's text: a string, bytes as a list of numbers, several values as a list of those, or null."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        if value and all(isinstance(item, int) for item in value):
            return bytes(item & 0xFF for item in value).decode(errors="replace")
        return "\n".join(_text(item) for item in value)
    return str(value)


def _first_number(value: Any) -> int | None:
    text = _text(value).partition("\n")[0]
    return int(text) if re.fullmatch(r"\d{1,19}", text) else None


def parse_entry(line: str) -> Entry | None:
    """The entry in one line of `journalctl -o json`; None for a line that is none, such as a notice of journalctl."""
    if not line.startswith("{"):
        return None
    try:
        data = json.loads(line)
    except ValueError:
        return None
    cursor = data.get("__CURSOR")
    micros = _first_number(data.get("__REALTIME_TIMESTAMP"))
    if not isinstance(cursor, str) or micros is None:
        return None
    return Entry(
        cursor=cursor,
        time=micros / 1e6,
        message=_text(data.get("MESSAGE")),
        pid=_first_number(data.get("_PID")),
        priority=_first_number(data.get("PRIORITY")),
        source=_text(data.get("SYSLOG_IDENTIFIER")),
        invocation=_text(data.get("_SYSTEMD_INVOCATION_ID")) or _text(data.get("INVOCATION_ID")),
    )


async def whole_lines(lines: AsyncIterator[Line]) -> AsyncGenerator[str, None]:
    """Standard output's lines with the pieces of cut ones put together again, up to `LONGEST_ENTRY` characters."""
    pieces: list[str] = []
    held = 0
    async for line in lines:
        if line.err:
            continue
        if held <= LONGEST_ENTRY:
            pieces.append(line.text)
        held += len(line.text)
        if line.cut:
            continue
        if held <= LONGEST_ENTRY:
            yield "".join(pieces)
        pieces, held = [], 0


async def _entries(lines: AsyncIterator[Line]) -> AsyncGenerator[Entry, None]:
    async for line in whole_lines(lines):
        entry = parse_entry(line)
        if entry is not None:
            yield entry


@asynccontextmanager
async def follow(
    node: Node,
    unit: str,
    *,
    invocation: str | None = None,
    cursor: str | None = None,
    since_boot: bool = False,
) -> AsyncIterator[AsyncIterator[Entry]]:
    """The unit's entries as they come, after `cursor` or from the beginning, of one `invocation` or of all.

    Includes what systemd itself says about the unit. `since_boot`: none from before the node's last boot. The iterator
    does not end by itself; it raises `Unreachable` when the link is lost, and going on is to call this again with the
    last entry's cursor.
    """
    argv = entries_call(unit, invocation=invocation, cursor=cursor, this_boot=since_boot)
    async with node.stream(argv, sudo=True) as lines, aclosing(_entries(lines)) as entries:
        yield entries


@asynccontextmanager
async def read(
    node: Node, unit: str, *, lines: int | None = None, follow: bool = False, invocation: str | None = None
) -> AsyncIterator[AsyncIterator[Entry]]:
    """The unit's last `lines` entries, or all of them; with `follow` also those to come."""
    argv = entries_call(unit, invocation=invocation, lines=lines, follow=follow)
    async with node.stream(argv, sudo=True) as raw, aclosing(_entries(raw)) as entries:
        yield entries


async def last_cursor(node: Node) -> str | None:
    """The place of the newest entry of the whole journal; None while the journal is empty. Following a unit after it
    shows what happens from now on and nothing older."""
    argv = ("journalctl", "--no-pager", "--quiet", "-o", "json", "--output-fields=PRIORITY", "--lines=1")
    for line in reversed((await capture(node, argv, sudo=True)).splitlines()):
        entry = parse_entry(line)
        if entry is not None:
            return entry.cursor
    return None
