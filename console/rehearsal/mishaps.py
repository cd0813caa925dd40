"""Faults that bite in the node itself: in its link, its init, its disk and its other processes.

`never-starts`, `drop`, `slow`, `orphan`, `port-in-use`, `disk-full`. What the stand-in vLLM and the hub do wrong is theirs.
A step is recognised by what an operator's run does on the node, as the node itself would see it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from console.rehearsal import faults
from console.rehearsal.init.pid1 import Pid1
from console.rehearsal.init.service import Service
from console.rehearsal.layout import Layout
from console.rehearsal.link import Link
from console.rehearsal.processes import Reaper, send
from console.rehearsal.seed import OLD_PORT, OLD_UNIT

CUT_SECONDS = 2.0
ROOM_BYTES = 2_500_000
"""What `disk-full` leaves free when the download begins: about a third of the practice checkpoint."""
ORPHAN_MIB = 8_000
"""What `orphan` leaves behind on one GPU: too much for the new service, and little enough for the old one to come back."""
_STANDINS = Path(__file__).with_name("standins")
_JOBS = {
    "engine": ("engine", "venv"),
    "download": ("download", "fetch"),
    "shards": ("shards", "hash"),
    "throughput": ("throughput", "bench", "load"),
}


class Mishaps:
    """Reads the fault file whenever something happens that a fault may wait for."""

    def __init__(self, layout: Layout, pid1: Pid1, link: Link, reaper: Reaper) -> None:
        self._layout = layout
        self._pid1 = pid1
        self._link = link
        self._reaper = reaper
        self._fired: set[tuple[str, int]] = set()
        self._squatter: tuple[int, asyncio.Future[int]] | None = None
        pid1.cannot_execute = self._cannot_execute
        pid1.before_start = self._before_start
        pid1.after_stop = self._after_stop

    def at_door(self, event: str) -> None:
        """An SSH client did something: `exec`, or `forward PORT`."""
        if event == "exec":
            self._reached("inspect")
        elif event.startswith("forward "):
            self._reached("ready")

    def moved(self, service: Service, was: str) -> None:
        """A unit changed its state."""
        if service.active == "activating" and was in ("inactive", "failed"):
            self._reached(self._step_of(service))
        elif service.active == "deactivating" and was == "active" and self._serves(service):
            self._reached("stop")
        elif service.active in ("inactive", "failed") and was == "deactivating" and self._serves(service):
            self._reached("drain")

    def _reached(self, step: str) -> None:
        fault = faults.chosen(self._layout.faults, "drop")
        if fault is not None and fault.step == step and self._once("drop"):
            self._link.cut(CUT_SECONDS)

    def _is_on(self, name: str) -> bool:
        return faults.chosen(self._layout.faults, name) is not None

    def _once(self, name: str) -> bool:
        """True the first time that a fault which is on is asked for; setting faults anew arms it again."""
        if not self._is_on(name):
            return False
        mark = (name, self._layout.faults.stat().st_mtime_ns)
        fresh = mark not in self._fired
        self._fired.add(mark)
        return fresh

    def _serves(self, service: Service) -> bool:
        """A service with a file of its own, not a job."""
        return Path(service.unit.path).parent == self._layout.units

    def _is_new(self, service: Service) -> bool:
        """What a redeploy brings: the old service works, whatever is practised, so that there is a way back."""
        return self._serves(service) and service.name != OLD_UNIT

    def _step_of(self, service: Service) -> str:
        """The step that starts this unit: jobs by their name, a service by being one."""
        if self._serves(service):
            return "launch"
        stem = service.name.removesuffix(".service")
        return next((step for step, names in _JOBS.items() if any(name in stem for name in names)), "")

    def _cannot_execute(self, service: Service) -> bool:
        return self._is_new(service) and self._is_on("never-starts")

    async def _before_start(self, service: Service) -> None:
        if self._is_new(service) and self._once("port-in-use"):
            self._squatter = await self._start_program("_squatter", str(OLD_PORT))
        if service.name == OLD_UNIT and self._squatter is not None:
            # whoever took the port has gone by then, so that the way back is open
            pid, ended = self._squatter
            self._squatter = None
            send(pid, signal.SIGKILL)
            await ended
        if self._step_of(service) == "download":
            self._fill_disk()

    async def _after_stop(self, service: Service) -> None:
        if self._serves(service) and self._once("orphan"):
            await self._start_program("orphan", str(ORPHAN_MIB), "3")

    def _fill_disk(self) -> None:
        """Limit the tree under ROOT/srv, and put what enforces it into every environment of the node."""
        limit = self._layout.root / "disk-limit"
        sites = self._layout.root.glob("opt/*/lib/python3*/site-packages")
        if not self._is_on("disk-full"):
            limit.unlink(missing_ok=True)
            return
        if self._once("disk-full"):
            held = sum(path.lstat().st_size for path in (self._layout.root / "srv").rglob("*") if path.is_file())
            limit.write_text(str(held + ROOM_BYTES))
        for site in sites:
            shutil.copyfile(_STANDINS / "_full_disk.py", site / "sitecustomize.py")

    async def _start_program(self, name: str, *arguments: str) -> tuple[int, asyncio.Future[int]]:
        """A process outside of every unit, as a colleague's would be; back when it says that it does what it is for."""
        read_end, write_end = os.pipe()
        try:
            started = self._reaper.spawn(
                (sys.executable, "-I", "-S", str(_STANDINS / f"{name}.py"), *arguments),
                env=self._pid1.base_environment(), cwd=self._layout.root,
                stdin=subprocess.DEVNULL, stdout=write_end, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        finally:
            os.close(write_end)
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read_end, "rb", 0)
        )
        await reader.readline()
        transport.close()
        return started
