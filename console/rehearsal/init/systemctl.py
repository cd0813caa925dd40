"""`systemctl` as the practice init answers it: argv in; text, errors and exit code out, all in its words."""

from __future__ import annotations

import asyncio
import getopt
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from console.rehearsal.init import shown
from console.rehearsal.init.pid1 import Pid1, Refusal
from console.rehearsal.init.reply import Reply
from console.rehearsal.init.text import signal_number

_SHORT = "p:P:at:qfn:ls:o:rH:M:"
_LONG = (
    "property=", "value", "all", "type=", "state=", "no-legend", "no-pager", "output=", "plain", "quiet", "now",
    "no-block", "no-ask-password", "system", "force", "lines=", "full", "signal=", "kill-whom=", "kill-who=", "version",
    "job-mode=", "timestamp=", "runtime", "failed", "no-reload", "no-warn", "legend=", "user", "wait", "help",
)  # fmt: skip
_BECAUSE = {
    "resources": "of unavailable resources or another system error",
    "protocol": "the service did not take the steps required by its unit configuration",
    "timeout": "a timeout was exceeded",
    "exit-code": "the control process exited with error code",
    "signal": "a fatal signal was delivered to the control process",
    "core-dump": "a fatal signal was delivered causing the control process to dump core",
}


@dataclass(frozen=True, slots=True)
class _Options:
    given: dict[str, list[str]]

    def has(self, *names: str) -> bool:
        return any(name in self.given for name in names)

    def values(self, *names: str) -> list[str]:
        return [value for name in names for value in self.given.get(name, ())]


async def answer(pid1: Pid1, argv: list[str], reply: Reply) -> int:
    """Do what `systemctl ARGV` does; returns its exit code."""
    try:
        pairs, words = getopt.gnu_getopt(argv, _SHORT, list(_LONG))
    except getopt.GetoptError as error:
        reply.err(f"systemctl: {error.msg}\n")
        return 1
    options = _Options({})
    for name, value in pairs:
        options.given.setdefault(name, []).append(value)
    if options.has("--version"):
        reply.out(f"systemd {shown.VERSION} ({shown.VERSION}-relaunch-practice)\n+PAM default-hierarchy=unified\n")
        return 0
    if options.has("--user"):
        reply.err("Failed to connect to bus: No medium found\n")
        return 1
    verb, *names = words or ["list-units"]
    action = _VERBS.get(verb)
    if action is None:
        reply.err(f"Unknown command verb {verb}.\n")
        return 1
    return await action(pid1, [_full(name) for name in names], options, reply)


def _full(name: str) -> str:
    known = (".service", ".timer", ".target", ".socket", ".scope", ".slice", ".mount", ".path")
    return name if name.endswith(known) else f"{name}.service"


async def _start(pid1: Pid1, names: list[str], options: _Options, reply: Reply) -> int:
    for name in names:
        service = pid1.services.get(name)
        if service is not None and pid1.stale(service):
            reply.err(
                f"Warning: The unit file, source configuration file or drop-ins of {name} changed on disk. "
                "Run 'systemctl daemon-reload' to reload units.\n"
            )
    return await _jobs(pid1, names, options, reply, pid1.start)


async def _restart(pid1: Pid1, names: list[str], options: _Options, reply: Reply) -> int:
    async def again(name: str) -> Refusal | str | None:
        if name in pid1.services:
            await pid1.stop(name)
        return await pid1.start(name)

    return await _jobs(pid1, names, options, reply, again)


async def _stop(pid1: Pid1, names: list[str], options: _Options, reply: Reply) -> int:
    return await _jobs(pid1, names, options, reply, pid1.stop)


async def _jobs(
    pid1: Pid1, names: list[str], options: _Options, reply: Reply, job: Callable[[str], Awaitable[Refusal | str | None]]
) -> int:
    jobs = [asyncio.ensure_future(job(name)) for name in names]
    pid1.jobs.update(jobs)  # a job goes on when its systemctl is gone
    for task in jobs:
        task.add_done_callback(pid1.jobs.discard)
    if options.has("--no-block"):
        await asyncio.sleep(0)  # one turn of the loop, so that what is refused at once is told
        jobs = [task for task in jobs if task.done()]
    code = 0
    for name, result in zip(names, await asyncio.gather(*(asyncio.shield(task) for task in jobs)), strict=False):
        if isinstance(result, Refusal):
            reply.err(result.text + "\n")
            code = result.code
        elif result:
            reply.err(_job_failed(name, result))
            code = 1
    return code


def _job_failed(name: str, result: str) -> str:
    if result == "canceled":
        return f"Job for {name} canceled.\n"
    details = f'See "systemctl status {name}" and "journalctl -xeu {name}" for details.\n'
    if result == "start-limit-hit":
        return (
            f'Job for {name} failed.\n{details}To force a start use "systemctl reset-failed {name}"\n'
            f'followed by "systemctl start {name}" again.\n'
        )
    because = f" because {_BECAUSE[result]}" if result in _BECAUSE else ""
    return f"Job for {name} failed{because}.\n{details}"


async def _kill(pid1: Pid1, names: list[str], options: _Options, reply: Reply) -> int:
    wanted = (options.values("-s", "--signal") or ["SIGTERM"])[-1]
    whom = (options.values("--kill-whom", "--kill-who") or ["all"])[-1]
    try:
        number = signal_number(wanted)
    except ValueError:
        reply.err(f"Failed to parse signal string {wanted}.\n")
        return 1
    code = 0
    for name in names:
        service = pid1.services.get(name)
        if service is None:
            reply.err(f"Failed to kill unit {name}: Unit {name} not loaded.\n")
            code = 1
        elif not service.kill(number, whom) and whom == "main":
            reply.err(f"Failed to kill unit {name}: No main process to kill\n")
            code = 1
    return code


async def _show(pid1: Pid1, names: list[str], options: _Options, reply: Reply) -> int:
    wanted = [name for value in options.values("-p", "--property", "-P") for name in value.split(",") if name]
    only_values = options.has("--value", "-P")
    units = [shown.unit(pid1, name) for name in names] if names else [shown.manager(pid1)]
    blocks = []
    for properties in units:
        chosen = {name: value for name, value in properties.items() if not wanted or name in wanted}
        blocks.append("".join((value if only_values else f"{name}={value}") + "\n" for name, value in chosen.items()))
    reply.out("\n".join(blocks))
    return 0


async def _is_active(pid1: Pid1, names: list[str], options: _Options, reply: Reply) -> int:
    states = [shown.unit(pid1, name)["ActiveState"] for name in names]
    if not options.has("-q", "--quiet"):
        reply.out("".join(f"{state}\n" for state in states))
    return 0 if any(state in ("active", "reloading") for state in states) else 3


async def _is_failed(pid1: Pid1, names: list[str], options: _Options, reply: Reply) -> int:
    states = [shown.unit(pid1, name)["ActiveState"] for name in names]
    if not options.has("-q", "--quiet"):
        reply.out("".join(f"{state}\n" for state in states))
    return 0 if "failed" in states else 1


async def _is_enabled(pid1: Pid1, names: list[str], options: _Options, reply: Reply) -> int:
    code = 1
    for name in names:
        state = pid1.enabled(name)
        if not state:
            reply.err(f"Failed to get unit file state for {name}: No such file or directory\n")
            return 1
        if not options.has("-q", "--quiet"):
            reply.out(f"{state}\n")
        code = 0 if state != "disabled" else code
    return code


async def _enable(pid1: Pid1, names: list[str], options: _Options, reply: Reply) -> int:
    for name in names:
        lines = pid1.enable(name)
        if lines is None:
            reply.err(f"Failed to enable unit: Unit file {name} does not exist.\n")
            return 1
        reply.err("".join(f"{line}\n" for line in lines))
    return await _start(pid1, names, options, reply) if options.has("--now") else 0


async def _disable(pid1: Pid1, names: list[str], options: _Options, reply: Reply) -> int:
    for name in names:
        lines = pid1.disable(name)
        if lines is None:
            reply.err(f"Failed to disable unit: Unit file {name} does not exist.\n")
            return 1
        reply.err("".join(f"{line}\n" for line in lines))
    return await _stop(pid1, names, options, reply) if options.has("--now") else 0


async def _daemon_reload(pid1: Pid1, names: list[str], options: _Options, reply: Reply) -> int:
    pid1.reload()
    return 0


async def _reset_failed(pid1: Pid1, names: list[str], options: _Options, reply: Reply) -> int:
    for name in names or [service.name for service in pid1.services.values() if service.active == "failed"]:
        refusal = pid1.reset_failed(name)
        if refusal is not None:
            reply.err(refusal.text + "\n")
            return refusal.code
    return 0


async def _cat(pid1: Pid1, names: list[str], options: _Options, reply: Reply) -> int:
    for number, name in enumerate(names):
        unit = pid1.read(name)
        if unit is None:
            reply.err(f"No files found for {name}.\n")
            return 1
        files = [unit.path, *unit.drop_ins]
        reply.out(("\n" if number else "") + "\n".join(_file(path) for path in files))
    return 0


def _file(path: str) -> str:
    return f"# {path}\n{Path(path).read_text(errors='replace')}"


async def _list_units(pid1: Pid1, names: list[str], options: _Options, reply: Reply) -> int:
    kinds = ",".join(options.values("-t", "--type")).split(",")
    states = set(filter(None, ",".join(options.values("--state")).split(",")))
    states |= {"failed"} if options.has("--failed") else set()
    rows = []
    for name in sorted({*pid1.services, *pid1.timers}):
        found = shown.unit(pid1, name)
        row = {
            "unit": name, "load": found["LoadState"], "active": found["ActiveState"], "sub": found["SubState"],
            "description": found["Description"],
        }  # fmt: skip
        fits = not states or states & {row["load"], row["active"], row["sub"]}
        if fits and (kinds == [""] or name.rpartition(".")[2] in kinds) and _matches(name, names):
            rows.append(row)
    if "json" in "".join(options.values("-o", "--output")):
        reply.out(json.dumps(rows) + "\n")
        return 0
    legend = not options.has("--no-legend") and "no" not in options.values("--legend")
    mark = "" if options.has("--plain") or not legend else "  "
    table = [" ".join(row.values()) for row in rows]
    head = [f"{mark}UNIT LOAD ACTIVE SUB DESCRIPTION"] if legend else []
    tail = ["", f"{len(rows)} loaded units listed."] if legend else []
    reply.out("".join(f"{line}\n" for line in [*head, *(mark + line for line in table), *tail]))
    return 0


def _matches(name: str, patterns: list[str]) -> bool:
    # a pattern without a suffix was made a service's name on the way in
    return not patterns or any(
        fnmatchcase(name, pattern) or fnmatchcase(name, pattern.removesuffix(".service")) for pattern in patterns
    )


async def _list_unit_files(pid1: Pid1, names: list[str], options: _Options, reply: Reply) -> int:
    found = sorted({path.name for folder in pid1.folders() for path in folder.glob("*.service")})
    rows = [name for name in found if _matches(name, names)]
    reply.out("".join(f"{name} {pid1.enabled(name)} enabled\n" for name in rows))
    return 0


async def _status(pid1: Pid1, names: list[str], options: _Options, reply: Reply) -> int:
    code = 0
    for name in names:
        found = shown.unit(pid1, name)
        if found["LoadState"] == "not-found":
            reply.err(f"Unit {name} could not be found.\n")
            code = 4
            continue
        lines = [
            f"● {name} - {found['Description']}",
            f"     Loaded: {found['LoadState']} ({found['FragmentPath']}; {found['UnitFileState']}; preset: enabled)",
            f"     Active: {found['ActiveState']} ({found['SubState']})",
        ]
        lines += [f"   Main PID: {found['MainPID']}"] if found["MainPID"] != "0" else []
        reply.out("\n".join(lines) + "\n")
        code = code or (0 if found["ActiveState"] == "active" else 3)
    return code


async def _is_system_running(pid1: Pid1, names: list[str], options: _Options, reply: Reply) -> int:
    state = shown.manager(pid1)["SystemState"]
    reply.out(f"{state}\n")
    return 0 if state == "running" else 1


_VERBS: dict[str, Callable[[Pid1, list[str], _Options, Reply], Awaitable[int]]] = {
    "start": _start, "stop": _stop, "restart": _restart, "try-restart": _restart, "kill": _kill, "show": _show,
    "is-active": _is_active, "is-failed": _is_failed, "is-enabled": _is_enabled, "enable": _enable,
    "disable": _disable, "daemon-reload": _daemon_reload, "reset-failed": _reset_failed, "cat": _cat,
    "list-units": _list_units, "list-unit-files": _list_unit_files, "status": _status,
    "is-system-running": _is_system_running,
}  # fmt: skip
