"""Logs with the newest line first, as cloud consoles export them.

`newest_first` looks at the time stamps of the beginning. Such a log is read from its end, so that the rest of triage sees
time run forwards; line numbers are turned back, so that they still count in the input as given.
"""

from __future__ import annotations

import io
import itertools
import re
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from typing import IO, TYPE_CHECKING, Final

if TYPE_CHECKING:
    from console.triage.diagnosis import Diagnosis
    from console.triage.rules import Rules

_STAMP = re.compile(
    rb"^[^\n]{0,80}?(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?|\d\d-\d\d \d\d:\d\d:\d\d)(?=[^\n]*$)", re.MULTILINE
)
BLOCK: Final = 1 << 20
_ENOUGH: Final = 2


def newest_first(head: bytes) -> bool:
    """Whether the time stamps of `head` run backwards: more steps back than forward, and the last before the first."""
    stamps: dict[int, list[bytes]] = {}
    for found in _STAMP.finditer(head[: 128 << 10]):
        stamps.setdefault(len(found[1]) > 15, []).append(found[1].replace(b"T", b" "))
    if not stamps:
        return False
    times = max(stamps.values(), key=len)
    back = sum(1 for one, two in itertools.pairwise(times) if two < one)
    forth = sum(1 for one, two in itertools.pairwise(times) if two > one)
    return back >= _ENOUGH and back > 3 * forth and times[-1] < times[0]


def read_backwards(head: bytes, rest: IO[bytes], rules: Rules) -> Diagnosis:
    """The diagnosis of a newest-first log; `rest` may be a pipe, which is then spooled to a nameless temporary file."""
    from console.triage.reader import Reader

    reader = Reader(rules)
    with _whole(head, rest) as file:
        for block in _reversed(file):
            reader.feed(block)
    found = reader.diagnosis()
    lines = found.lines
    turn = lines + 1
    cause = found.cause
    if cause is not None and cause.line is not None:
        context = cause.context and (max(1, turn - cause.context[1]), turn - cause.context[0])
        around = tuple(reversed(cause.around))
        cause = replace(cause, line=turn - cause.line, context=context, around=around, at=len(around) - 1 - cause.at)
    ranks = tuple(replace(rank, line=turn - rank.line) for rank in found.ranks)
    return replace(found, cause=cause, ranks=ranks)


def _whole(head: bytes, rest: IO[bytes]) -> IO[bytes]:
    if rest.seekable():
        copy = open(rest.fileno(), "rb", closefd=False)  # noqa: SIM115 - the caller's with closes it
        copy.seek(0)
        return copy
    more = rest.read(BLOCK)
    spool: IO[bytes] = io.BytesIO() if not more else tempfile.TemporaryFile()  # noqa: SIM115
    spool.write(head)
    while more:
        spool.write(more)
        more = rest.read(BLOCK)
    return spool


def _reversed(file: IO[bytes]) -> Iterator[bytes]:
    """The file's lines from the last to the first, in blocks; every line with its end."""
    at = file.seek(0, io.SEEK_END)
    tail = b""
    first = True
    while at > 0:
        size = min(BLOCK, at)
        at -= size
        file.seek(at)
        lines = (file.read(size) + tail).split(b"\n")
        if first:
            first = False
            if lines[-1] == b"":
                lines.pop()
        if at > 0:
            tail = lines.pop(0)
        if lines:
            lines.reverse()
            yield b"\n".join(lines) + b"\n"
