"""The practice node put together: its door, its link, its init, and how long it lives."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path

from console.rehearsal import faults, sshd
from console.rehearsal.init.desk import Desk
from console.rehearsal.init.pid1 import Pid1
from console.rehearsal.init.service import Service
from console.rehearsal.layout import Layout
from console.rehearsal.link import Link, Pace
from console.rehearsal.mishaps import Mishaps
from console.rehearsal.processes import Reaper

_BOOT_SECONDS = 2.0
_PUBLISH_SECONDS = 0.5
"""How old cgroup.procs may be for forks that nobody reports; jobs and questions refresh it at once."""


class PracticeNode:
    """One practice node; `run` serves until `ending` is set or it has been idle for long enough."""

    def __init__(self, layout: Layout, short: Path, reaper: Reaper, user: str, idle: float) -> None:
        self._layout = layout
        self._idle = idle
        self.ending = asyncio.Event()
        self._ready = asyncio.Event()
        self._pid1 = Pid1(layout, short, reaper)
        self._desk = Desk(self._pid1, short / "private")
        self._door = sshd.Door(layout, reaper, user, self._ready, on_change=self._activity)
        self._link = Link(self._accept, self._pace)
        self._mishaps = Mishaps(layout, self._pid1, self._link, reaper)
        self._door.on_event = self._mishaps.at_door
        self._pid1.moved = self._moved
        self._timer: asyncio.TimerHandle | None = None

    def announcement(self) -> dict[str, object]:
        """What a console needs to log in."""
        public = self._layout.host_key.with_suffix(".pub").read_text().split()
        port = self._link.port
        return {
            "host": "127.0.0.1",
            "port": port,
            "user": self._door.user,
            "host_key": f"[127.0.0.1]:{port} {public[0]} {public[1]}",
        }

    async def run(self, seeded: asyncio.Future[int]) -> None:
        """Serve. `seeded` ends when the sandbox stands; commands wait for that, connections do not."""
        self._activity()
        tasks = [asyncio.ensure_future(self._link.serve()), asyncio.ensure_future(self._desk.serve())]
        ending = asyncio.ensure_future(self.ending.wait())
        try:
            await asyncio.wait((seeded, ending), return_when=asyncio.FIRST_COMPLETED)
            if not ending.done():
                boot = asyncio.ensure_future(self._pid1.boot())
                tasks += [boot, asyncio.ensure_future(self._publish())]
                # whoever asks first finds the enabled services started, unless one of them takes its time
                await asyncio.wait((boot, ending), timeout=_BOOT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                self._ready.set()
                await ending
        finally:
            self._pid1.halt()
            for conn in tuple(self._door.connections):
                conn.abort()
            for task in (*tasks, ending):
                task.cancel()
            await asyncio.gather(*tasks, ending, return_exceptions=True)

    async def _accept(self, sock: socket.socket) -> None:
        await sshd.serve(self._door, sock)

    def _pace(self) -> Pace | None:
        return Pace() if faults.chosen(self._layout.faults, "slow") else None

    async def _publish(self) -> None:
        while True:
            with contextlib.suppress(OSError):
                self._pid1.publish()
            await asyncio.sleep(_PUBLISH_SECONDS)

    def _moved(self, service: Service, was: str) -> None:
        self._mishaps.moved(service, was)
        self._activity()

    def _activity(self) -> None:
        """Idle is: nobody is connected, and nothing runs but what the node was seeded with."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        jobs = any(
            service.alive and self._pid1.enabled(service.name) == "transient"
            for service in self._pid1.services.values()
        )
        if not self._door.connections and not jobs:
            self._timer = asyncio.get_running_loop().call_later(self._idle, self.ending.set)
