"""What `systemctl show` says of a unit and of the init itself, in systemd's names and notations. Pure but for clocks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from console.rehearsal.init.service import Service
from console.rehearsal.init.state import Stamp
from console.rehearsal.init.words import quoted

if TYPE_CHECKING:
    from console.rehearsal.init.pid1 import Pid1

VERSION = "252"


def manager(pid1: Pid1) -> dict[str, str]:
    """Properties of the init itself: `systemctl show` without a unit."""
    failed = sum(service.active == "failed" for service in pid1.services.values())
    return {
        "Version": f"{VERSION} (relaunch practice)",
        "Features": "",
        "Virtualization": "",
        "Architecture": "",
        "NNames": str(len(pid1.services)),
        "NFailedUnits": str(failed),
        "NJobs": "0",
        "Progress": "1",
        "UnitPath": " ".join(str(folder) for folder in pid1.folders()),
        "DefaultStandardOutput": "journal",
        "DefaultTimeoutStartUSec": "1min 30s",
        "DefaultTimeoutStopUSec": "1min 30s",
        "ControlGroup": "",
        "SystemState": "degraded" if failed else "running",
    }


def unit(pid1: Pid1, name: str) -> dict[str, str]:
    """Properties of a unit, whether it is loaded, only on disk, or not there at all."""
    service = pid1.find(name)
    if service is not None:
        return _service(pid1, service)
    timer = pid1.timers.get(name)
    if timer is not None:
        return _base(name, "loaded", timer.description) | {
            "ActiveState": "active", "SubState": "waiting", "Result": "success", "Unit": timer.service,
            "NextElapseUSecRealtime": stamp(Stamp(int(timer.elapses_at * 1e6), 1)), "UnitFileState": "transient",
        }  # fmt: skip
    text = pid1.read(name)
    if text is None:
        return _base(name, "not-found", name) | {"FragmentPath": "", "UnitFileState": ""}
    return _base(name, "bad-setting", text.last("Unit", "Description", name)) | {
        "FragmentPath": text.path, "UnitFileState": pid1.enabled(name),
    }  # fmt: skip


def _base(name: str, load: str, description: str) -> dict[str, str]:
    found = {
        "Type": "simple", "Restart": "no", "Result": "success", "MainPID": "0", "ControlPID": "0", "NRestarts": "0",
        "ExecMainStartTimestamp": "", "ExecMainStartTimestampMonotonic": "0", "ExecMainExitTimestamp": "",
        "ExecMainExitTimestampMonotonic": "0", "ExecMainPID": "0", "ExecMainCode": "0", "ExecMainStatus": "0",
        "ControlGroup": "", "MemoryCurrent": "[not set]", "TasksCurrent": "[not set]", "Id": name, "Names": name,
        "Description": description, "LoadState": load, "ActiveState": "inactive", "SubState": "dead",
        "FragmentPath": "", "DropInPaths": "", "UnitFileState": "", "UnitFilePreset": "enabled",
        "NeedDaemonReload": "no", "InvocationID": "", "CollectMode": "inactive", "Transient": "no",
    }  # fmt: skip
    if load == "not-found":
        found["LoadError"] = f'org.freedesktop.systemd1.NoSuchUnit "Unit {name} not found."'
    return found


def _service(pid1: Pid1, service: Service) -> dict[str, str]:
    settings, main = service.settings, service.main
    ended = main.ended
    code, status = (
        (0, 0) if ended is None else (1, ended.code) if ended.code >= 0 else (3 if ended.core else 2, -ended.code)
    )
    if service.current is not None:
        service.current.publish()
    pids = service.pids
    found = _base(service.name, "loaded", settings.description) | {
        "Type": settings.type, "Restart": settings.restart, "RestartUSec": span(settings.restart_seconds),
        "TimeoutStartUSec": span(settings.start_timeout), "TimeoutStopUSec": span(settings.stop_timeout),
        "RemainAfterExit": "yes" if settings.remain else "no",
        "MainPID": str(main.pid if ended is None else 0), "NRestarts": str(service.restarts),
        "Result": service.result, "ExecMainPID": str(main.pid), "ExecMainCode": str(code),
        "ExecMainStatus": str(status), "ExecMainStartTimestamp": stamp(main.start),
        "ExecMainStartTimestampMonotonic": str(main.start.monotonic), "ExecMainExitTimestamp": stamp(main.exit),
        "ExecMainExitTimestampMonotonic": str(main.exit.monotonic), "ExecStart": _exec_start(service),
        "Slice": settings.slice, "ControlGroup": service.cgroup_path if service.alive else "",
        "TasksCurrent": str(len(pids)) if service.alive else "[not set]",
        "Environment": " ".join(
            quoted(f"{name}={value}") if set(value) & set(" \"'\\") else f"{name}={value}"
            for name, value in settings.environment.items()
        ),
        "EnvironmentFiles": " ".join(
            f"{path} (ignore_errors={'yes' if optional else 'no'})" for path, optional in settings.environment_files
        ),
        "WorkingDirectory": settings.working_directory if settings.working_directory != "/" else "",
        "User": settings.user, "KillMode": settings.kill_mode, "KillSignal": str(settings.kill_signal),
        "SendSIGKILL": "yes" if settings.send_sigkill else "no", "Conflicts": " ".join(settings.conflicts),
        "StartLimitBurst": str(settings.start_limit_burst),
        "StartLimitIntervalUSec": span(settings.start_limit_seconds),
        "ActiveState": service.active, "SubState": service.sub, "FragmentPath": service.unit.path,
        "DropInPaths": " ".join(service.unit.drop_ins), "UnitFileState": pid1.enabled(service.name),
        "NeedDaemonReload": "yes" if pid1.stale(service) else "no", "InvocationID": service.invocation,
        "CollectMode": "inactive-or-failed" if settings.collect else "inactive",
        "Transient": "yes" if pid1.enabled(service.name) == "transient" else "no",
    }  # fmt: skip
    for key, values in service.unit.settings.get("Service", {}).items():
        if key.startswith("Limit") and values:
            soft, _, hard = values[-1].partition(":")
            found[key], found[f"{key}Soft"] = hard or soft, soft
    for name, at in service.moves.stamps.items():
        found[f"{name}Timestamp"], found[f"{name}TimestampMonotonic"] = stamp(at), str(at.monotonic)
    return found


def _exec_start(service: Service) -> str:
    main = service.main
    shown = []
    for command in service.settings.commands["ExecStart"]:
        ended = main.ended
        code = "(null)" if ended is None else "exited" if ended.code >= 0 else "killed"
        shown.append(
            f"{{ path={command.argv[0]} ; argv[]={' '.join(command.argv)} ; "
            f"ignore_errors={'yes' if command.ignore_failure else 'no'} ; start_time=[{stamp(main.start) or 'n/a'}] ; "
            f"stop_time=[{stamp(main.exit) or 'n/a'}] ; pid={main.pid} ; code={code} ; "
            f"status={0 if ended is None else abs(ended.code)}/0 }}"
        )
    return " ; ".join(shown)


def stamp(at: Stamp) -> str:
    """A time as systemctl shows it, in the machine's time zone; empty for never."""
    return time.strftime("%a %Y-%m-%d %H:%M:%S %Z", time.localtime(at.real / 1e6)) if at.real else ""


def span(seconds: float) -> str:
    """A time span as systemctl shows it: `1min 30s`, `100ms`, `infinity`."""
    if seconds == float("inf"):
        return "infinity"
    left, parts = round(seconds * 1_000_000), []
    for size, unit_name in ((3_600_000_000, "h"), (60_000_000, "min"), (1_000_000, "s"), (1000, "ms"), (1, "us")):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{unit_name}")
    return " ".join(parts) or "0"
