"""What a service's unit file means, typed: the settings that the practice init obeys. Pure but for EnvironmentFile."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from console.rehearsal.init import text, words
from console.rehearsal.init.text import Command, UnitText

_CLEAN_SIGNALS = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE})
INFINITY = float("inf")


@dataclass(frozen=True, slots=True)
class Statuses:
    """Exit codes and signals, as SuccessExitStatus= and its like list them."""

    codes: frozenset[int]
    signals: frozenset[int]

    def holds(self, code: int) -> bool:
        """`code` is negative for a signal."""
        return -code in self.signals if code < 0 else code in self.codes


@dataclass(frozen=True, slots=True)
class Settings:
    """One service. Times in seconds; infinity where there is no limit."""

    type: str
    description: str
    restart: str
    restart_seconds: float
    start_limit_seconds: float
    start_limit_burst: int
    start_timeout: float
    stop_timeout: float
    kill_mode: str
    kill_signal: int
    send_sigkill: bool
    remain: bool
    collect: bool
    working_directory: str
    directory_optional: bool
    identifier: str
    user: str
    umask: int
    slice: str
    success: Statuses
    prevent: Statuses
    force: Statuses
    limits: tuple[tuple[int, int, int], ...]
    conflicts: tuple[str, ...]
    wanted_by: tuple[str, ...]
    environment: Mapping[str, str]
    environment_files: tuple[tuple[str, bool], ...]
    """Path, and whether it may be missing."""
    commands: Mapping[str, tuple[Command, ...]]

    def is_clean(self, code: int) -> bool:
        """Whether a main process that ended with `code` (negative for a signal) ended well."""
        return code == 0 or -code in _CLEAN_SIGNALS or self.success.holds(code)


def settings(unit: UnitText, values: Mapping[str, str]) -> Settings:
    """The typed settings of a service. `values` are the specifiers."""
    service = "Service"
    kind = unit.last(service, "Type", "simple")
    start = "infinity" if kind == "oneshot" else "90s"
    both = unit.last(service, "TimeoutSec")
    directory = words.specifiers(unit.last(service, "WorkingDirectory", "/"), values)
    optional = directory.startswith("-")
    burst = unit.last("Unit", "StartLimitBurst") or unit.last(service, "StartLimitBurst", "5")
    interval = unit.last("Unit", "StartLimitIntervalSec") or unit.last(service, "StartLimitInterval", "10s")
    return Settings(
        type=kind,
        description=words.specifiers(unit.last("Unit", "Description", unit.name), values),
        restart=unit.last(service, "Restart", "no"),
        restart_seconds=words.seconds(unit.last(service, "RestartSec", "100ms")),
        start_limit_seconds=words.seconds(interval),
        start_limit_burst=int(burst),
        start_timeout=_timeout(unit.last(service, "TimeoutStartSec", both or start)),
        stop_timeout=_timeout(unit.last(service, "TimeoutStopSec", both or "90s")),
        kill_mode=unit.last(service, "KillMode", "control-group"),
        kill_signal=text.signal_number(unit.last(service, "KillSignal", "SIGTERM")),
        send_sigkill=unit.flag(service, "SendSIGKILL", True),
        remain=unit.flag(service, "RemainAfterExit"),
        collect=unit.last("Unit", "CollectMode") == "inactive-or-failed",
        working_directory=directory.lstrip("-"),
        directory_optional=optional,
        identifier=unit.last(service, "SyslogIdentifier"),
        user=unit.last(service, "User"),
        umask=int(unit.last(service, "UMask", "0022"), 8),
        slice=unit.last(service, "Slice", "system.slice"),
        success=_statuses(unit.all(service, "SuccessExitStatus")),
        prevent=_statuses(unit.all(service, "RestartPreventExitStatus")),
        force=_statuses(unit.all(service, "RestartForceExitStatus")),
        limits=_limits(unit),
        conflicts=tuple(name for line in unit.all("Unit", "Conflicts") for name in line.split()),
        wanted_by=tuple(name for line in unit.all("Install", "WantedBy") for name in line.split()),
        environment=text.environment(unit, values),
        environment_files=tuple(
            (words.specifiers(path.lstrip("-"), values), path.startswith("-"))
            for path in unit.all(service, "EnvironmentFile")
        ),
        commands={key: tuple(text.commands(unit, key, values)) for key in _EXECS},
    )


_EXECS = ("ExecCondition", "ExecStartPre", "ExecStart", "ExecStartPost", "ExecStop", "ExecStopPost")


def _timeout(value: str) -> float:
    seconds = words.seconds(value)
    return seconds or INFINITY  # 0 turns a time limit off


def _statuses(lines: list[str]) -> Statuses:
    codes, signals = set(), set()
    for word in " ".join(lines).split():
        if word.isdigit():
            codes.add(int(word))
        else:
            try:
                signals.add(text.signal_number(word))
            except ValueError:
                continue
    return Statuses(frozenset(codes), frozenset(signals))


def _limits(unit: UnitText) -> tuple[tuple[int, int, int], ...]:
    found = []
    for key, values in unit.settings.get("Service", {}).items():
        what = getattr(resource, f"RLIMIT_{key.removeprefix('Limit')}", None) if key.startswith("Limit") else None
        if what is not None and values:
            soft, _, hard = values[-1].partition(":")
            found.append((int(what), text.limit(soft), text.limit(hard or soft)))
    return tuple(found)


class NoEnvironmentFile(Exception):
    """An `EnvironmentFile=` that may not be missing cannot be read."""

    def __init__(self, error: OSError) -> None:
        super().__init__(error.strerror)
        self.error = error


def environment(unit: Settings, base: Mapping[str, str], invocation: str) -> dict[str, str]:
    """What the unit's processes find in their environment; files override settings, as in systemd.exec(5)."""
    found = {**base, "INVOCATION_ID": invocation, **unit.environment}
    for path, optional in unit.environment_files:
        try:
            found.update(text.environment_file(Path(path).read_text()))
        except OSError as error:
            if not optional:
                raise NoEnvironmentFile(error) from error
    return found


EXIT_NAMES = {
    0: "SUCCESS", 1: "FAILURE", 2: "INVALIDARGUMENT", 3: "NOTIMPLEMENTED", 4: "NOPERMISSION", 5: "NOTINSTALLED",
    6: "NOTCONFIGURED", 7: "NOTRUNNING", 200: "CHDIR", 203: "EXEC", 205: "LIMITS", 217: "USER",
}  # fmt: skip


def status_words(code: int, core: bool = False) -> str:
    """`code=exited, status=1/FAILURE` and its like, as systemd logs an end."""
    if code < 0:
        return f"code={'dumped' if core else 'killed'}, status={-code}/{signal.Signals(-code).name.removeprefix('SIG')}"
    return f"code=exited, status={code}/{EXIT_NAMES.get(code, 'n/a')}"


def comm(pid: int) -> str:
    """The short name of a process, as `Killing process 7 (vllm)` shows it."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "n/a"


def default_identifier(program: str) -> str:
    return os.path.basename(program)
