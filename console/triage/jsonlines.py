"""Logs in which a line is a JSON object: Docker's json-file, journalctl -o json, vLLM's and other JSON formatters.

Each object becomes plain text in the shape of a vLLM record, so that the rest of triage needs to know one shape only. A
message that holds several lines becomes several, all with the number of the one line in the input.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from console.triage.prefix import parse

_MESSAGE: Final = ("message", "MESSAGE", "msg", "log", "text", "event", "textPayload")
_LEVEL: Final = ("level", "levelname", "severity", "lvl")
_PROCESS: Final = ("process_name", "processName", "process")
_TRACE: Final = ("exc_info", "exception", "exc_text", "traceback", "stack_trace", "stack")
_LEVELS: Final = frozenset({"DEBUG", "INFO", "WARNING", "WARN", "ERROR", "CRITICAL", "FATAL"})


def begins(raw: bytes) -> bool:
    """Whether `raw` begins like a JSON object with keys; for the lines below its first the catalogue's scan tells."""
    return raw[:3].replace(b" ", b"").startswith(b'{"')


def lines(raw: bytes) -> Iterator[tuple[bytes, int]]:
    """Pieces of text, each ending in a line end, with the number of line ends of the input behind it."""
    for line in raw.splitlines(keepends=True):
        text = _text(line) if line.lstrip()[:1] == b"{" else None
        yield (line if text is None else text.encode("utf-8", "replace")), line.count(b"\n")


def _text(line: bytes) -> str | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    found = next((record[key] for key in _MESSAGE if key in record), None)
    if isinstance(found, list):  # journald gives bytes that are no text as a list of numbers
        found = bytes(n & 255 for n in found if isinstance(n, int)).decode("utf-8", "replace")
    if not isinstance(found, str):
        return None
    trace = next((record[key] for key in _TRACE if isinstance(record.get(key), str)), "")
    # a collector calls everything on stderr an error; a record that the server wrote knows its own level
    head = "" if parse(found[:400]).level else _head(record)
    body = found.rstrip("\n") + ("\n" + trace.rstrip("\n") if trace else "")
    return "".join(f"{head}{part}\n" for part in body.split("\n"))


def _head(record: dict[str, Any]) -> str:
    head = ""
    pid = record.get("pid", record.get("process_id", record.get("process")))
    name = next((record[key] for key in _PROCESS if isinstance(record.get(key), str)), None)
    if name and str(pid).isdigit():
        head = f"({name} pid={pid}) "
    level = next((str(record[key]).upper() for key in _LEVEL if key in record), "")
    if level in _LEVELS:
        place = record.get("filename") or record.get("fileinfo") or record.get("pathname")
        number = record.get("lineno") or record.get("line")
        if place and ":" in str(place):
            head += f"{level} 01-01 00:00:00 [{str(place).rsplit('/', 1)[-1]}] "
        elif place and number:
            head += f"{level} 01-01 00:00:00 [{str(place).rsplit('/', 1)[-1]}:{number}] "
        else:
            head += f"{level} 01-01 00:00:00 [json:1] "
    return head
