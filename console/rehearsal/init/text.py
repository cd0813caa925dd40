"""Unit files as text: read, merged with drop-ins, and complained about in systemd's own words. Pure but for `load`."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from console.rehearsal.init import words

RESTARTS = ("no", "on-success", "on-failure", "on-abnormal", "on-watchdog", "on-abort", "always")
TYPES = ("simple", "exec", "oneshot", "notify", "forking", "dbus", "idle")
KILL_MODES = ("control-group", "mixed", "process", "none")
_BLANK = " \t\r\n"
"""What systemd strips; other white space of Unicode is text."""
_SIZES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@cache
def directives() -> Mapping[str, frozenset[str]]:
    """The directives that systemd 252 knows, by section."""
    known: dict[str, set[str]] = {}
    section = ""
    for word in Path(__file__).with_name("directives.txt").read_text().split("\n", 1)[1].split():
        if word.endswith(":"):
            section = word[:-1]
        known.setdefault(section, set())
        if not word.endswith(":"):
            known[section].add(word)
    return {name: frozenset(names) for name, names in known.items()}


@dataclass(slots=True)
class UnitText:
    """One unit's settings in order, with what systemd would complain about. `fatal`: it refuses to load the unit."""

    name: str
    path: str
    settings: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    fatal: str = ""
    drop_ins: tuple[str, ...] = ()
    mtime_ns: int = 0

    def last(self, section: str, key: str, default: str = "") -> str:
        values = self.settings.get(section, {}).get(key)
        return values[-1] if values else default

    def all(self, section: str, key: str) -> list[str]:
        return self.settings.get(section, {}).get(key, [])

    def flag(self, section: str, key: str, default: bool = False) -> bool:
        return self.last(section, key, "yes" if default else "no").lower() in ("1", "yes", "y", "true", "t", "on")


def load(path: Path, folders: tuple[Path, ...] = ()) -> UnitText:
    """The unit file at `path` with the `*.conf` drop-ins of `folders`. Raises OSError when it cannot be read."""
    unit = UnitText(path.name, str(path), mtime_ns=path.stat().st_mtime_ns)
    read_into(unit, path.read_text(errors="replace"), str(path))
    found = {file.name: file for folder in folders for file in folder.glob("*.conf")}
    for name in sorted(found):
        read_into(unit, found[name].read_text(errors="replace"), str(found[name]))
        unit.mtime_ns = max(unit.mtime_ns, found[name].stat().st_mtime_ns)
    unit.drop_ins = tuple(str(found[name]) for name in sorted(found))
    if unit.name.endswith(".service"):
        _judge(unit)
    return unit


def read_into(unit: UnitText, text: str, path: str) -> None:
    """Add the settings of `text`; an empty assignment clears what stood before."""
    section, pending, begun = "", "", 0
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.strip(_BLANK) if not pending else raw.rstrip(_BLANK)
        if line.lstrip(_BLANK)[:1] in ("#", ";"):
            continue
        if not pending:
            begun = number
        if line.endswith("\\"):
            pending += line[:-1] + " "
            continue
        line, pending = (pending + line).strip(_BLANK), ""
        if not line:
            continue
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1]
            if section not in directives() and not section.startswith("X-"):
                unit.warnings.append(f"{path}:{begun}: Unknown section '{section}'. Ignoring.")
        elif section in directives():
            _setting(unit, section, line, f"{path}:{begun}")


def _setting(unit: UnitText, section: str, line: str, where: str) -> None:
    key, equals, value = line.partition("=")
    key, value = key.strip(_BLANK), value.strip(_BLANK)
    if not equals:
        unit.warnings.append(f"{where}: Missing '=', ignoring line.")
        return
    if key not in directives()[section]:
        if not key.startswith("X-"):
            unit.warnings.append(f"{where}: Unknown key '{key}' in section [{section}], ignoring.")
        return
    complaint = _complaint(unit, key, value) if value else ""
    if complaint:
        unit.warnings.append(f"{where}: {complaint}")
        return
    values = unit.settings.setdefault(section, {}).setdefault(key, [])
    if value:
        values.append(value)
    else:
        values.clear()


def _complaint(unit: UnitText, key: str, value: str) -> str:
    """What systemd says of a value that it does not take; empty when it takes it."""
    if key.startswith("Exec"):
        return _exec_complaint(unit, value)
    if key == "WorkingDirectory" and not value.lstrip("-").startswith(("/", "~", "%")):
        unit.fatal = "Unit configuration has fatal error, unit will not be started."
        return f"WorkingDirectory= path is not absolute: {value}"
    if key in ("Environment", "PassEnvironment"):
        try:
            words.split(value)
        except words.Unbalanced:
            return f"Invalid syntax, ignoring: {value}"
    for test, noun in (
        (key.endswith("Sec") or key in ("StartLimitInterval",), "time value"),
        (key.startswith("Limit") and not key.startswith("LimitRT"), "resource value"),
        (key in ("KillSignal", "RestartKillSignal", "FinalKillSignal"), "signal name"),
    ):
        if test and not _parses(noun, value):
            return f"Failed to parse {noun}, ignoring: {value}"
    for name, allowed, noun in (
        ("Restart", RESTARTS, "service restart specifier"),
        ("Type", TYPES, "service type"),
        ("KillMode", KILL_MODES, "kill mode"),
    ):
        if key == name and value not in allowed:
            return f"Failed to parse {noun}, ignoring: {value}"
    return ""


def _exec_complaint(unit: UnitText, value: str) -> str:
    try:
        argv, unknown = words.split(value)
    except words.Unbalanced:
        unit.fatal = "Unit configuration has fatal error, unit will not be started."
        return f"Unbalanced quoting, ignoring: {value}"
    program = argv[0].lstrip("-@:+!") if argv else ""
    if "/" in program and not program.startswith(("/", "%")):
        unit.fatal = "Unit configuration has fatal error, unit will not be started."
        return f"Neither a valid executable name nor an absolute path: {program}"
    if unknown:
        unit.warnings.append(f"{unit.path}: Ignoring unknown escape sequences: {value}")
    return ""


def _parses(noun: str, value: str) -> bool:
    try:
        if noun == "time value":
            words.seconds(value)
        elif noun == "resource value":
            for part in value.split(":"):
                limit(part)
        else:
            signal_number(value)
    except ValueError:
        return False
    return True


def limit(text: str) -> int:
    """A resource limit: a number, with K/M/G/T or a time unit, or `infinity`."""
    if text in ("infinity", "-1"):
        return resource.RLIM_INFINITY
    if text[-1:] in _SIZES:
        return int(text[:-1]) * _SIZES[text[-1]]
    return int(text)


def signal_number(text: str) -> int:
    """The number of `SIGTERM`, `TERM` or `15`; raises ValueError."""
    if text.isdigit():
        return signal.Signals(int(text)).value
    name = text if text.startswith("SIG") else f"SIG{text}"
    try:
        return signal.Signals[name].value
    except KeyError:
        raise ValueError(text) from None


def _judge(unit: UnitText) -> None:
    if not unit.fatal and not any(unit.all("Service", key) for key in ("ExecStart", "ExecStop")):
        unit.fatal = "Service has no ExecStart=, ExecStop=, or SuccessAction=. Refusing."
    elif len(unit.all("Service", "ExecStart")) > 1 and unit.last("Service", "Type") != "oneshot":
        unit.fatal = (
            "Service has more than one ExecStart= setting, which is only allowed for Type=oneshot services. Refusing."
        )


@dataclass(frozen=True, slots=True)
class Command:
    """One Exec line: `argv` unquoted with specifiers replaced, variables not yet."""

    argv: tuple[str, ...]
    ignore_failure: bool
    expands: bool


def commands(unit: UnitText, key: str, values: Mapping[str, str]) -> list[Command]:
    """The commands of an `Exec…=` setting; a word `;` separates two."""
    found = []
    for line in unit.all("Service", key):
        group: list[str] = []
        for word in [*words.split(line)[0], ";"]:
            if word != ";":
                group.append(words.specifiers(word, values))
                continue
            if group:
                program = group[0].lstrip("-@:+!")
                prefix = group[0][: len(group[0]) - len(program)]
                found.append(Command((program, *group[1:]), "-" in prefix, ":" not in prefix))
            group = []
    return found


def environment(unit: UnitText, values: Mapping[str, str]) -> dict[str, str]:
    """What `Environment=` sets."""
    found: dict[str, str] = {}
    for line in unit.all("Service", "Environment"):
        for word in words.split(line)[0]:
            name, equals, value = words.specifiers(word, values).partition("=")
            if equals:
                found[name] = value
    return found


def environment_file(text: str) -> dict[str, str]:
    """What an `EnvironmentFile=` sets: NAME=value lines, shell-like quotes, comments."""
    found: dict[str, str] = {}
    for raw in text.split("\n"):
        line = raw.strip(_BLANK)
        if not line or line[0] in "#;":
            continue
        name, equals, value = line.partition("=")
        if equals:
            try:
                found[name.strip()] = " ".join(words.split(value)[0]) if value[:1] in "\"'" else value
            except words.Unbalanced:
                found[name.strip()] = value
    return found


def executable(program: str, path: str) -> str | None:
    """The absolute path of `program`, looked for on `path` when it is a bare name; None when there is none."""
    candidates = [program] if "/" in program else [os.path.join(folder, program) for folder in path.split(os.pathsep)]
    return next((name for name in candidates if os.path.isfile(name) and os.access(name, os.X_OK)), None)
