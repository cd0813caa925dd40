"""`systemd-run` as the practice init answers it: a transient service or timer, written as a unit file and started."""

from __future__ import annotations

import asyncio
import getopt
import os
import time
import uuid
from dataclasses import dataclass, field

from console.rehearsal.init import shown, text, words
from console.rehearsal.init.pid1 import Pid1, Refusal, Timer
from console.rehearsal.init.reply import Reply
from console.rehearsal.init.service import Service
from console.rehearsal.init.settings import status_words

_LONG = (
    "unit=", "property=", "description=", "slice=", "uid=", "gid=", "nice=", "working-directory=", "setenv=",
    "on-active=", "timer-property=", "service-type=", "same-dir", "remain-after-exit", "collect", "wait", "pipe",
    "quiet", "no-block", "no-ask-password", "system", "version", "user", "scope", "pty", "send-sighup",
    "expand-environment=",
)  # fmt: skip
_HEADER = "# This is a transient unit file, created programmatically via the systemd API. Do not edit.\n"
_IN_UNIT = ("CollectMode", "Description", "After", "Before", "Wants", "Requires", "Conflicts", "BindsTo", "PartOf")


@dataclass(slots=True)
class _Asked:
    """What the command line asks for."""

    unit: str = ""
    command: tuple[str, ...] = ()
    properties: list[tuple[str, str]] = field(default_factory=list)
    description: str = ""
    on_active: float | None = None
    switches: set[str] = field(default_factory=set)


class _Misuse(Exception):
    pass


async def answer(pid1: Pid1, argv: list[str], folder: str, fds: tuple[int, ...], reply: Reply) -> int:
    """Do what `systemd-run ARGV` does; returns its exit code."""
    try:
        asked = _parse(argv, folder)
    except (getopt.GetoptError, _Misuse, ValueError) as error:
        reply.err(f"{error}\n")
        return 1
    if "--version" in asked.switches:
        reply.out(f"systemd {shown.VERSION} ({shown.VERSION}-relaunch-practice)\n")
        return 0
    if not asked.command:
        if asked.on_active is not None and asked.unit and pid1.fragment(asked.unit) is not None:
            return _timer(pid1, asked.unit, asked, asked.on_active, reply)  # for a service that has a file of its own
        reply.err("Command line to execute required.\n")
        return 1
    program = text.executable(asked.command[0], pid1.base_environment()["PATH"])
    if program is None:
        reply.err(f"Failed to find executable {asked.command[0]}: No such file or directory\n")
        return 1
    name = asked.unit or f"run-u{uuid.uuid4().int % 10000}.service"
    kind = "timer" if asked.on_active is not None else "service"
    if name in pid1.services or name in pid1.timers or pid1.fragment(name) is not None:
        reply.err(f"Failed to start transient {kind} unit: Unit {name} was already loaded or has a fragment file.\n")
        return 1
    path = pid1.layout.transient / name
    path.write_text(_unit_text(asked, program))
    if asked.on_active is not None:
        return _timer(pid1, name, asked, asked.on_active, reply)
    return await _service(pid1, name, asked, fds, reply)


def _parse(argv: list[str], folder: str) -> _Asked:
    pairs, command = getopt.getopt(argv, "p:E:u:d:rqGPtH:M:", list(_LONG))
    asked = _Asked(command=tuple(command))
    simple = {
        "--slice": "Slice", "--uid": "User", "--gid": "Group", "--nice": "Nice", "--service-type": "Type",
        "--working-directory": "WorkingDirectory",
    }  # fmt: skip
    for option, value in pairs:
        if option in ("-u", "--unit"):
            asked.unit = value if value.endswith(".service") else f"{value}.service"
        elif option in ("-p", "--property"):
            key, equals, setting = value.partition("=")
            if not equals:
                raise _Misuse(f"Not an assignment: {value}")
            asked.properties.append((key, setting.replace("%", "%%")))
        elif option == "--description":
            asked.description = value
        elif option in ("-E", "--setenv"):
            pair = value if "=" in value else f"{value}={os.environ.get(value, '')}"
            asked.properties.append(("Environment", words.quoted(pair)))
        elif option == "--on-active":
            asked.on_active = words.seconds(value)
        elif option == "--timer-property":
            if value.startswith("OnActiveSec="):
                asked.on_active = words.seconds(value.partition("=")[2])
        elif option in simple:
            asked.properties.append((simple[option], value))
        else:
            asked.switches.add(
                {"-r": "--remain-after-exit", "-q": "--quiet", "-G": "--collect", "-P": "--pipe"}.get(option, option)
            )
    if {"-d", "--same-dir"} & asked.switches:
        asked.properties.append(("WorkingDirectory", folder))
    if "--remain-after-exit" in asked.switches:
        asked.properties.append(("RemainAfterExit", "yes"))
    if "--collect" in asked.switches:
        asked.properties.append(("CollectMode", "inactive-or-failed"))
    return asked


def _unit_text(asked: _Asked, program: str) -> str:
    description = asked.description or f"{program} {' '.join(asked.command[1:])}".strip()
    description = description.replace("%", "%%").replace("\n", " ")
    for key, value in asked.properties:
        if "\n" in key + value:
            raise _Misuse(f"Invalid property: {key}")
    unit = "".join(f"{key}={value}\n" for key, value in asked.properties if key in _IN_UNIT)
    service = "".join(f"{key}={value}\n" for key, value in asked.properties if key not in _IN_UNIT)
    command = " ".join(words.quoted(word) for word in (program, *asked.command[1:]))
    return f"{_HEADER}\n[Unit]\nDescription={description}\n{unit}\n[Service]\n{service}ExecStart={command}\n"


def _timer(pid1: Pid1, name: str, asked: _Asked, after: float, reply: Reply) -> int:
    timer = name.removesuffix(".service") + ".timer"

    def elapsed() -> None:
        pid1.timers.pop(timer, None)
        job = asyncio.ensure_future(pid1.start(name))
        pid1.jobs.add(job)
        job.add_done_callback(pid1.jobs.discard)

    handle = asyncio.get_running_loop().call_later(after, elapsed)
    description = asked.description or " ".join(asked.command)
    pid1.timers[timer] = Timer(timer, name, description, handle, time.time() + after)
    if "--quiet" not in asked.switches:
        reply.err(f"Running timer as unit: {timer}\nWill run service as unit: {name}\n")
    return 0


async def _service(pid1: Pid1, name: str, asked: _Asked, fds: tuple[int, ...], reply: Reply) -> int:
    service = pid1.find(name)
    if service is None:
        unit = pid1.read(name)
        (pid1.layout.transient / name).unlink(missing_ok=True)
        reply.err(f"Failed to start transient service unit: {unit.fatal if unit else 'Invalid argument'}\n")
        return 1
    unknown = [warning.split(": ", 1)[1] for warning in service.unit.warnings if ": Unknown key" in warning]
    if unknown:
        (pid1.layout.transient / name).unlink(missing_ok=True)
        reply.err(f"Unknown assignment: {unknown[0].split(chr(39))[1]}\n")
        return 1
    if "--pipe" in asked.switches and len(fds) == 3:
        service.stdio = (os.dup(fds[0]), os.dup(fds[1]), os.dup(fds[2]))
    pid1.services[name] = service
    job = asyncio.ensure_future(pid1.start(name))
    pid1.jobs.add(job)
    job.add_done_callback(pid1.jobs.discard)
    if "--quiet" not in asked.switches:
        reply.err(f"Running as unit: {name}\n")
    if "--no-block" in asked.switches:
        return 0
    result = await asyncio.shield(job)
    if isinstance(result, Refusal):
        reply.err(result.text + "\n")
        return result.code
    if {"--wait", "--pipe"} & asked.switches:
        return await _waited(service, asked, reply)
    if result and "--quiet" in asked.switches:
        return 1
    if result:
        reply.err(f'Job for {name} failed.\nSee "systemctl status {name}" and "journalctl -xeu {name}" for details.\n')
        return 1
    return 0


async def _waited(service: Service, asked: _Asked, reply: Reply) -> int:
    await service.dead()
    ended = service.main.ended
    if "--quiet" not in asked.switches and "--pipe" not in asked.switches:
        state = status_words(ended.code, ended.core).replace(", ", "/") if ended is not None else "n/a"
        reply.err(f"Finished with result: {service.result}\nMain processes terminated with: {state}\n")
    if ended is None:
        return 1
    return ended.code if ended.code >= 0 else 255
