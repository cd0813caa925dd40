"""All units of the practice node: loaded from disk, started, stopped, enabled, forgotten.

A unit that is dead and that nothing wants is forgotten at once, as systemd collects it: what is then asked of it is
read from its file again. A failed one stays until `reset-failed`, unless it was made with `--collect`.
"""

from __future__ import annotations

import asyncio
import getpass
import os
import platform
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from console.rehearsal.init import text
from console.rehearsal.init.invocation import Invocation
from console.rehearsal.init.journal import Journal
from console.rehearsal.init.service import Service
from console.rehearsal.init.settings import settings
from console.rehearsal.init.text import UnitText
from console.rehearsal.layout import Layout
from console.rehearsal.processes import Reaper

TARGET = "multi-user.target"


async def _nothing(service: Service) -> None:
    """What happens around a start or a stop when no fault is on."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a job could not even begin, in systemctl's words, and its exit code."""

    text: str
    code: int


@dataclass(frozen=True, slots=True)
class Timer:
    """A transient timer that starts `service` once."""

    name: str
    service: str
    description: str
    handle: asyncio.TimerHandle
    elapses_at: float
    """UNIX time."""


class Pid1:
    """The practice init. `moved` is called after each change of a unit's state with the service and what it was."""

    def __init__(self, layout: Layout, short: Path, reaper: Reaper) -> None:
        self.layout = layout
        self.reaper = reaper
        self.journal = Journal(layout.journal, platform.node() or "practice")
        self.cannot_execute: Callable[[Service], bool] = lambda service: False
        self.moved: Callable[[Service, str], None] = lambda service, was: None
        self.before_start: Callable[[Service], Awaitable[None]] = _nothing
        self.after_stop: Callable[[Service], Awaitable[None]] = _nothing
        self.services: dict[str, Service] = {}
        self.timers: dict[str, Timer] = {}
        self.jobs: set[asyncio.Future[Any]] = set()
        """Jobs under way, held so that they outlive whoever asked for them."""
        self._short = short
        self._sockets: dict[str, socket.socket] = {}

    # what a service asks of its host

    def cgroup_folder(self, control_group: str) -> Path:
        return self.layout.cgroup / control_group.lstrip("/")

    def base_environment(self) -> Mapping[str, str]:
        user = getpass.getuser()
        return self.layout.environment() | {"USER": user, "LOGNAME": user}

    def changed(self, service: Service, was: str) -> None:
        self.moved(service, was)
        if not service.alive or was == "dead":
            self._collect(service)

    def notify_socket(self, invocation: Invocation) -> str:
        """A datagram socket on which `READY=1` makes the service active."""
        path = self._short / f"n{len(self._sockets)}"
        path.unlink(missing_ok=True)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        sock.bind(str(path))
        sock.setblocking(False)
        self._sockets[str(path)] = sock

        def heard() -> None:
            if b"READY=1" in sock.recv(4096).split(b"\n"):
                invocation.notified.set()

        asyncio.get_running_loop().add_reader(sock, heard)
        return str(path)

    # units and their files

    def folders(self) -> tuple[Path, ...]:
        """UnitPath: where unit files are looked for, first match wins."""
        return (self.layout.units, self.layout.root / "run/systemd/system", self.layout.transient)

    def fragment(self, name: str) -> Path | None:
        if "/" in name or name in ("", ".", ".."):
            return None
        return next((path for folder in self.folders() if (path := folder / name).is_file()), None)

    def read(self, name: str) -> UnitText | None:
        """The unit as its files say now; None when there is none."""
        path = self.fragment(name)
        if path is None:
            return None
        try:
            return text.load(path, tuple(folder / f"{name}.d" for folder in self.folders()))
        except OSError:
            return None

    def specifiers(self, name: str) -> dict[str, str]:
        stem = name.rpartition(".")[0]
        prefix, _, instance = stem.partition("@")
        return {
            "n": name, "N": stem, "p": prefix, "i": instance, "I": instance, "h": str(self.layout.root),
            "H": platform.node(), "u": getpass.getuser(), "U": str(os.getuid()), "t": str(self.layout.root / "run"),
            "S": str(self.layout.root / "var/lib"), "T": "/tmp", "s": "/bin/sh", "f": f"/{prefix}",  # noqa: S108
        }  # fmt: skip

    def find(self, name: str) -> Service | None:
        """The service `name`: as loaded, else as its file says; None when there is none or it cannot be loaded."""
        if name in self.services:
            return self.services[name]
        unit = self.read(name)
        if unit is None or unit.fatal or not name.endswith(".service"):
            return None
        return Service(self, unit, settings(unit, self.specifiers(name)))

    def stale(self, service: Service) -> bool:
        """NeedDaemonReload: the files are not what was loaded."""
        if service.name not in self.services:
            return False
        now = self.read(service.name)
        return now is None or (now.path, now.mtime_ns, now.drop_ins) != (
            service.unit.path, service.unit.mtime_ns, service.unit.drop_ins,
        )  # fmt: skip

    def reload(self) -> None:
        """daemon-reload: every loaded unit is read again; what runs goes on running."""
        for name, service in tuple(self.services.items()):
            unit = self.read(name)
            if unit is not None and not unit.fatal:
                service.unit, service.settings = unit, settings(unit, self.specifiers(name))
            elif unit is None and not service.alive:
                self._forget(service)
        self.journal.manager("", "", "Reloading.")
        for name in sorted({path.name for folder in self.folders() for path in folder.glob("*.service")}):
            unit = self.read(name)
            for warning in unit.warnings if unit else ():
                self.journal.manager("", "", warning, priority=4)

    # jobs

    async def start(self, name: str) -> Refusal | str:
        """Start a unit. A refusal, or the failed job's result, or an empty string."""
        service = self.find(name)
        if service is None:
            unit = self.read(name)
            if unit is None:
                return Refusal(f"Failed to start {name}: Unit {name} not found.", 5)
            self.journal.manager(name, "", f"{name}: {unit.fatal}", priority=3)
            return Refusal(
                f"Failed to start {name}: Unit {name} has a bad unit file setting.\n"
                f"See system logs and 'systemctl status {name}' for details.", 1,
            )  # fmt: skip
        self.services[name] = service
        rivals = [
            other for other in self.services.values()
            if other is not service and (other.name in service.settings.conflicts or name in other.settings.conflicts)
        ]  # fmt: skip
        await asyncio.gather(*(other.stop() for other in rivals))
        if not service.alive:
            await self.before_start(service)
        return await service.start()

    async def stop(self, name: str) -> Refusal | None:
        timer = self.timers.pop(name, None)
        if timer is not None:
            timer.handle.cancel()
            if timer.service not in self.services:  # collected with what it would have started
                (self.layout.transient / timer.service).unlink(missing_ok=True)
            return None
        service = self.services.get(name)
        if service is None:
            if self.fragment(name) is None:
                return Refusal(f"Failed to stop {name}: Unit {name} not loaded.", 5)
            return None
        await service.stop()
        await self.after_stop(service)
        return None

    def reset_failed(self, name: str) -> Refusal | None:
        service = self.services.get(name)
        if service is None:
            if self.fragment(name) is None:
                return Refusal(f"Failed to reset failed state of unit {name}: Unit {name} not loaded.", 1)
            return None
        service.reset_failed()
        self._collect(service)
        return None

    # enablement

    def enabled(self, name: str) -> str:
        """UnitFileState: enabled, disabled, static, transient, or empty when there is no file."""
        path = self.fragment(name)
        if path is None:
            return ""
        if path.parent == self.layout.transient:
            return "transient"
        if any(self.layout.units.glob(f"*.wants/{name}")):
            return "enabled"
        unit = self.read(name)
        return "disabled" if unit is not None and unit.settings.get("Install") else "static"

    def enable(self, name: str) -> list[str] | None:
        """Link it where it is wanted; systemctl's lines, or None when there is no such file."""
        path, unit = self.fragment(name), self.read(name)
        if path is None or unit is None:
            return None
        lines = []
        for target in " ".join(unit.all("Install", "WantedBy")).split():
            link = self.layout.units / f"{target}.wants" / name
            if not link.is_symlink():
                link.parent.mkdir(exist_ok=True)
                link.symlink_to(path)
                lines.append(f"Created symlink {link} → {path}.")
        return lines

    def disable(self, name: str) -> list[str] | None:
        links = sorted(self.layout.units.glob(f"*.wants/{name}"))
        if self.fragment(name) is None and not links:
            return None
        for link in links:
            link.unlink()
        return [f'Removed "{link}".' for link in links]

    async def boot(self) -> None:
        """Start what is enabled, all at once."""
        names = [link.name for link in self.layout.units.glob(f"{TARGET}.wants/*.service")]
        await asyncio.gather(*(self.start(name) for name in names))

    def halt(self) -> None:
        """The power is cut: no process of any unit survives."""
        for timer in self.timers.values():
            timer.handle.cancel()
        for service in self.services.values():
            if service.current is not None:
                service.current.abandon()
        for sock in self._sockets.values():
            asyncio.get_running_loop().remove_reader(sock)
            sock.close()
        self.journal.close()

    def publish(self) -> None:
        """Make every cgroup.procs true."""
        for service in self.services.values():
            if service.current is not None:
                service.current.publish()

    def _collect(self, service: Service) -> None:
        if service.alive and service.active not in ("inactive", "failed"):
            return
        failed = service.active == "failed"
        wanted = self.enabled(service.name) == "enabled"
        if (failed and service.settings.collect) or (not failed and not wanted):
            self._forget(service)

    def _forget(self, service: Service) -> None:
        if self.services.get(service.name) is service and service.active in ("inactive", "failed"):
            del self.services[service.name]
            if Path(service.unit.path).parent == self.layout.transient:
                Path(service.unit.path).unlink(missing_ok=True)
