"""Reads the practice journal as `journalctl` of systemd 252 does: units, matches, cursors, `-f`, `-o json|cat|short`.

Quirks kept: `-- No entries --` on stdout; JSON text over 4096 bytes is null without `--all`; text that is not printable
UTF-8 (a carriage return, an escape sequence) is a list of bytes in JSON and `[13B blob data]` in `short`.
"""

import getopt
import json
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any

from console.rehearsal.standins._desk import connect, root

Entry = dict[str, str]

SHORT = "u:o:fn:ebkqaxrp:t:S:U:c:g:D:m"
LONG = (
    "unit=", "output=", "follow", "lines=", "pager-end", "boot", "dmesg", "quiet", "all", "catalog", "reverse",
    "priority=", "identifier=", "since=", "until=", "cursor=", "after-cursor=", "show-cursor", "no-pager", "no-tail",
    "no-hostname", "utc", "full", "no-full", "merge", "system", "user", "output-fields=", "sync", "flush", "version",
    "rotate", "truncate-newline", "no-legend", "namespace=", "directory=",
)  # fmt: skip
LEVELS = ("emerg", "alert", "crit", "err", "warning", "notice", "info", "debug")
ADDRESS = ("__CURSOR", "__REALTIME_TIMESTAMP", "__MONOTONIC_TIMESTAMP", "_BOOT_ID")
UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
RELATIVE = re.compile(r"^([+-]?)([0-9.]+) *(s|sec|min|m|h|d|us|ms)?(?: ago)?$")
UNITS: dict[str | None, float] = {
    None: 1,
    "s": 1,
    "sec": 1,
    "min": 60,
    "m": 60,
    "h": 3600,
    "d": 86400,
    "us": 1e-6,
    "ms": 1e-3,
}


class Query:
    """What the command line asks for."""

    def __init__(self, argv: list[str]) -> None:
        pairs, self.matches = getopt.gnu_getopt(split_boot(argv), SHORT, list(LONG))
        given: dict[str, list[str]] = {}
        for name, value in pairs:
            given.setdefault(name, []).append(value)
        self.units = [
            name if "." in name else name + ".service"
            for value in given.get("-u", []) + given.get("--unit", [])
            for name in [value]
        ]
        self.output = (given.get("-o", []) + given.get("--output", []) or ["short"])[-1]
        self.follow = "-f" in given or "--follow" in given
        self.quiet = "-q" in given or "--quiet" in given
        self.all = "-a" in given or "--all" in given
        self.reverse = "-r" in given or "--reverse" in given
        self.kernel = "-k" in given or "--dmesg" in given
        self.show_cursor = "--show-cursor" in given
        self.version = "--version" in given
        self.idle = "--sync" in given or "--flush" in given or "--rotate" in given
        self.after = (given.get("--after-cursor") or [""])[-1]
        self.cursor = (given.get("-c", []) + given.get("--cursor", []) or [""])[-1]
        self.since = moment((given.get("-S", []) + given.get("--since", []) or [""])[-1])
        self.until = moment((given.get("-U", []) + given.get("--until", []) or [""])[-1])
        self.fields = set(",".join(given.get("--output-fields", [])).split(",")) - {""}
        self.level = level((given.get("-p", []) + given.get("--priority", []) or [""])[-1])
        self.identifiers = given.get("-t", []) + given.get("--identifier", [])
        lines = (given.get("-n", []) + given.get("--lines", []) or [""])[-1]
        ended = "-e" in given or "--pager-end" in given
        self.lines = None if lines in ("all", "") else int(lines)
        if lines == "" and (self.follow or ended) and not (self.after or self.cursor or "--no-tail" in given):
            self.lines = 10 if self.follow else 1000
        boots = given.get("--boot")
        self.boot = bool(boots) or self.kernel


def split_boot(argv: list[str]) -> list[str]:
    """`-b`, `-b ID`, `--boot=ID` take an optional value, and so do bare `-n`; this boot is all that is ever asked."""
    kept: list[str] = []
    at = 0
    while at < len(argv):
        word = argv[at]
        if word == "-b" or word.startswith("--boot"):
            kept.append("--boot")
            if word == "-b" and at + 1 < len(argv) and re.match(r"^(-?[0-9]+|[0-9a-f]{32})$", argv[at + 1]):
                at += 1
        elif word == "-n" and (at + 1 == len(argv) or argv[at + 1].startswith("-")):
            kept += ["-n", "10"]
        else:
            kept.append(word)
        at += 1
    return kept


def moment(text: str) -> int | None:
    """Microseconds of wall clock for `@1234.5`, `-5min`, `2025-01-31 12:00:00`, `now`, `today`; None for nothing."""
    if not text:
        return None
    if text.startswith("@"):
        return int(float(text[1:]) * 1e6)
    if text == "now":
        return time.time_ns() // 1000
    relative = RELATIVE.match(text)
    if relative:
        sign = 1 if relative.group(1) == "+" else -1
        return int((time.time() + sign * float(relative.group(2)) * UNITS[relative.group(3)]) * 1e6)
    if text == "today":
        text = time.strftime("%Y-%m-%d")
    whole, _, part = text.replace("T", " ").partition(".")
    for shape in ("%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%d"):
        try:
            return int(time.mktime(time.strptime(whole, shape)) * 1e6) + int((part + "000000")[:6] if part else 0)
        except ValueError:
            continue
    sys.stderr.write(f"Failed to parse timestamp: {text}\n")
    sys.exit(1)


def level(text: str) -> int | None:
    """The number of a priority."""
    if not text:
        return None
    return int(text) if text.isdigit() else LEVELS.index(text)


def of_unit(entry: Entry, name: str) -> bool:
    """What `-u` finds: what the unit's processes say, and what PID 1 says of it."""
    return entry.get("_SYSTEMD_UNIT") == name or (entry.get("_PID") == "1" and entry.get("UNIT") == name)


def wanted(query: Query, entry: Entry) -> bool:
    """Whether it is asked for."""
    if query.units and not any(of_unit(entry, name) for name in query.units):
        return False
    if query.kernel and entry.get("_TRANSPORT") != "kernel":
        return False
    if query.level is not None and int(entry.get("PRIORITY", "6")) > query.level:
        return False
    if query.identifiers and entry.get("SYSLOG_IDENTIFIER") not in query.identifiers:
        return False
    at = int(entry["__REALTIME_TIMESTAMP"])
    if (query.since is not None and at < query.since) or (query.until is not None and at > query.until):
        return False
    return matches(query.matches, entry)


def matches(words: list[str], entry: Entry) -> bool:
    """Different fields must all match; values of one field are alternatives; `+` begins another such group."""
    groups: list[dict[str, list[str]]] = []
    group: dict[str, list[str]] = {}
    for word in words:
        if word == "+":
            groups.append(group)
            group = {}
        else:
            name, _, value = word.partition("=")
            group.setdefault(name, []).append(value)
    groups.append(group)
    return any(all(entry.get(name) in values for name, values in group.items()) for group in groups)


def rendered(query: Query, entry: Entry) -> str:
    """One entry in the form asked for."""
    if query.output.startswith("json"):
        return json_text(query, entry)
    message = entry.get("MESSAGE", "")
    if query.output == "cat":
        return message
    if not query.all and UNPRINTABLE.search(message):
        message = f"[{len(encoded(message))}B blob data]"
    at = int(entry["__REALTIME_TIMESTAMP"]) / 1e6
    if query.output in ("short-iso", "short-iso-precise"):
        when = time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(at))
    elif query.output == "short-unix":
        when = f"{at:.6f}"
    else:
        when = time.strftime("%b %d %H:%M:%S", time.localtime(at))
    pid = f"[{entry['_PID']}]" if "_PID" in entry else ""
    name = entry.get("SYSLOG_IDENTIFIER", "unknown")
    indent = "\n" + " " * (len(when) + 1)
    return f"{when} {entry.get('_HOSTNAME', 'practice')} {name}{pid}: " + message.replace("\n", indent)


def json_text(query: Query, entry: Entry) -> str:
    """One entry as journalctl's JSON."""
    shown: dict[str, Any] = {}
    for name, value in entry.items():
        if query.fields and name not in query.fields and name not in ADDRESS:
            continue
        data = encoded(value)
        if len(data) > 4096 and not query.all:
            shown[name] = None
        elif UNPRINTABLE.search(value):
            shown[name] = list(data)
        else:
            shown[name] = value
    return json.dumps(shown, ensure_ascii=False)


def encoded(text: str) -> bytes:
    """The bytes that the program wrote."""
    return text.encode("utf-8", "surrogateescape")


class Reader:
    """The journal file from wherever reading stands; complete lines only."""

    def __init__(self, query: Query) -> None:
        self.query = query
        path = root() + "/var/log/journal/practice.jsonl"
        self.file = open(path, "rb") if os.path.exists(path) else open(os.devnull, "rb")
        self.rest = b""
        self.waiting = query.after or query.cursor
        # a quick look before the line is parsed: what is asked for must at least stand in it
        self.needles = [name.encode() for name in query.units] if len(query.units) == 1 else []

    def entries(self) -> Iterator[Entry]:
        """Those that are there and wanted, from where reading stands."""
        query = self.query
        while True:
            chunk = self.file.read(1 << 20)
            if not chunk:
                return
            lines = (self.rest + chunk).split(b"\n")
            self.rest = lines.pop()
            for line in lines:
                if self.waiting:
                    if self.waiting.encode() not in line:
                        continue
                    at_cursor, self.waiting = self.waiting, ""
                    if at_cursor == query.after:
                        continue
                if any(needle not in line for needle in self.needles):
                    continue
                entry = json.loads(line.decode("utf-8", "surrogateescape"))
                if wanted(query, entry):
                    yield entry


def out(lines: Iterable[str]) -> None:
    """Print lines as the bytes they are."""
    data = encoded("".join(line + "\n" for line in lines))
    while data:
        data = data[os.write(1, data) :]


def main(argv: list[str]) -> int:
    """Do what `journalctl ARGV` does; returns its exit code."""
    try:
        query = Query(argv)
    except getopt.GetoptError as error:
        sys.stderr.write(f"journalctl: {error.msg}\n")
        return 1
    if query.version:
        out(["systemd 252 (252-relaunch-practice)"])
        return 0
    if query.idle:
        return 0
    # the wake-up line is open before the file is read, so that nothing falls between the two
    wake = connect("journal-watch", []) if query.follow else None
    reader = Reader(query)
    entries = list(reader.entries())
    if query.lines is not None:
        entries = entries[len(entries) - query.lines :] if query.lines else []
    last = entries[-1] if entries else None
    out(rendered(query, entry) for entry in (reversed(entries) if query.reverse else entries))
    if wake is None:
        if last is None and not query.quiet:
            out(["-- No entries --"])
        if query.show_cursor and last is not None:
            out(["-- cursor: " + last["__CURSOR"]])
        return 0
    reader.waiting = ""
    while wake.recv(4096):
        out(rendered(query, entry) for entry in reader.entries())
    return 0
