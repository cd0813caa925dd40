"""The life of one service: from a start job to its death, with restarts, over real processes.

States, results, texts and their order are those of systemd 252 (`service.c`). One `Service` per loaded unit; its life is
one task, from the start job until it is dead or failed. Whoever asks for a start or a stop awaits the job's end.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from console.rehearsal.init.invocation import Invocation
from console.rehearsal.init.journal import Journal
from console.rehearsal.init.settings import Settings
from console.rehearsal.init.state import Main, Moves
from console.rehearsal.init.text import UnitText
from console.rehearsal.processes import Reaper, send

_RESTARTS_ON = {
    "no": frozenset[str](),
    "on-success": frozenset({"success"}),
    "on-failure": frozenset({"exit-code", "signal", "core-dump", "timeout", "resources", "protocol"}),
    "on-abnormal": frozenset({"signal", "core-dump", "timeout"}),
    "on-abort": frozenset({"signal", "core-dump"}),
    "on-watchdog": frozenset[str](),
    "always": frozenset({"success", "exit-code", "signal", "core-dump", "timeout", "resources", "protocol"}),
}


_NO_MAIN = Main()


class Host(Protocol):
    """What a service needs of the node it is on."""

    journal: Journal
    reaper: Reaper
    cannot_execute: Callable[[Service], bool]

    def cgroup_folder(self, control_group: str) -> Path: ...
    def base_environment(self) -> Mapping[str, str]: ...
    def changed(self, service: Service, was: str) -> None: ...
    def notify_socket(self, invocation: Invocation) -> str: ...


class Service:
    """A loaded service unit. `active`, `sub`, `result` are what systemctl shows."""

    def __init__(self, host: Host, unit: UnitText, settings: Settings) -> None:
        self.host = host
        self.unit = unit
        self.settings = settings
        self.active, self.sub, self.result = "inactive", "dead", "success"
        self.restarts = 0
        self.moves = Moves()
        self.stdio: tuple[int, int, int] | None = None
        """For `systemd-run --pipe`: the caller's own stdin, stdout and stderr."""
        self.current: Invocation | None = None
        """The newest start, living or over."""
        self._stop = asyncio.Event()
        self._skip_delay = asyncio.Event()
        self._starts: list[float] = []
        self._life: asyncio.Task[None] | None = None
        self._start_job: asyncio.Future[str] | None = None
        self._dead = asyncio.Event()
        self._dead.set()

    # what others ask

    @property
    def name(self) -> str:
        return self.unit.name

    @property
    def main(self) -> Main:
        return self.current.main if self.current is not None else _NO_MAIN

    @property
    def invocation(self) -> str:
        """The id of the newest start; empty before the first."""
        return self.current.id if self.current is not None else ""

    @property
    def pids(self) -> list[int]:
        """Live processes, parents first."""
        return self.current.pids if self.current is not None else []

    @property
    def cgroup_path(self) -> str:
        """Where its cgroup is while it has one."""
        return f"/{self.settings.slice}/{self.name}"

    @property
    def alive(self) -> bool:
        """Whether it is anything but dead or failed."""
        return not self._dead.is_set()

    async def start(self) -> str:
        """Start it, or join a start under way. The result when the job failed, else an empty string."""
        while self.active == "deactivating":
            await self._dead.wait()
        if self.alive and self.sub in ("running", "exited"):
            return ""
        if self.alive and self._start_job is not None:
            return await asyncio.shield(self._start_job)
        if self.alive:
            self._skip_delay.set()  # in auto-restart: now instead of after RestartSec
            self._start_job = asyncio.get_running_loop().create_future()
            return await asyncio.shield(self._start_job)
        self.restarts = 0
        self._stop.clear()
        self._dead.clear()
        self._start_job = asyncio.get_running_loop().create_future()
        job = self._start_job
        self._life = asyncio.ensure_future(self._live())
        return await asyncio.shield(job)

    async def stop(self) -> None:
        """Stop it and wait until it is dead."""
        if self.alive:
            self._stop.set()
            self._skip_delay.set()
            await self._dead.wait()

    async def dead(self) -> None:
        """Wait until it is neither active nor about to restart."""
        await self._dead.wait()

    def reset_failed(self) -> None:
        self._starts.clear()
        if self.active == "failed":
            self.set("inactive", "dead")
            self.result = "success"

    def kill(self, number: int, whom: str = "all") -> bool:
        """Signal the main process or all; False when there is none."""
        pids = self.pids if whom != "main" else [self.main.pid] if self.main.lives else []
        for pid in pids:
            send(pid, number)
        return bool(pids)

    # what its invocation tells it

    def started(self, sub: str) -> None:
        """It counts as active from now on."""
        self.set("active", sub)
        verb = "Finished" if self.settings.type == "oneshot" else "Started"
        self.say(f"{verb} {self.title}.", JOB_RESULT="done", JOB_TYPE="start")
        self.answer("")

    def close_stdio(self) -> None:
        for fd in set(self.stdio or ()):
            os.close(fd)
        self.stdio = None

    # its life

    async def _live(self) -> None:
        try:
            while True:
                if not await self._activation():
                    return
                self.set("activating", "auto-restart")
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self.settings.restart_seconds):
                        await self._skip_delay.wait()
                self._skip_delay.clear()
                if self._stop.is_set():
                    self.set("inactive", "dead")
                    return
                self.restarts += 1
                self.say(f"{self.name}: Scheduled restart job, restart counter is at {self.restarts}.")
        finally:
            self.answer("canceled")
            self._dead.set()
            self.host.changed(self, "dead")

    async def _activation(self) -> bool:
        """One start until its end. True when it is to be started again."""
        if not self._within_start_limit():
            self.say(f"{self.name}: Start request repeated too quickly.", priority=4)
            self._fail("start-limit-hit" if self.result == "success" else self.result)
            self.say(f"Failed to start {self.title}.", priority=3, JOB_RESULT="failed", JOB_TYPE="start")
            self.answer(self.result)
            return False
        self.result, self.current = "success", Invocation(self, self._stop)
        await self.current.run()
        self.result = self.current.result
        return self._ended(self._stop.is_set())

    def _within_start_limit(self) -> bool:
        now, window = time.monotonic(), self.settings.start_limit_seconds
        self._starts = [at for at in self._starts if now - at < window]
        if window > 0 and len(self._starts) >= self.settings.start_limit_burst:
            return False
        self._starts.append(now)
        return True

    def _ended(self, asked: bool) -> bool:
        quiet = self.settings.type == "oneshot" and not asked and not self.settings.remain
        if self.result == "success" and not quiet:
            self.say(f"{self.name}: Deactivated successfully.")
        again = not asked and self._restarts()
        was_starting = self._start_job is not None
        if self.result != "success":
            self._fail(self.result, quiet_state=again)
        elif not again:
            self.set("inactive", "dead")
        if was_starting and not asked:
            self.say(f"Failed to start {self.title}.", priority=3, JOB_RESULT="failed", JOB_TYPE="start")
        if asked:
            self.say(f"Stopped {self.title}.", JOB_RESULT="done", JOB_TYPE="stop")
        self.answer("canceled" if asked else self.result)
        return again

    def _restarts(self) -> bool:
        ended = self.main.ended
        if ended is not None and self.settings.prevent.holds(ended.code):
            return False
        if ended is not None and self.settings.force.holds(ended.code):
            return True
        return self.result in _RESTARTS_ON[self.settings.restart]

    # words

    @property
    def title(self) -> str:
        description = self.settings.description
        return self.name if description in ("", self.name) else f"{self.name} - {description}"

    def say(self, message: str, *, priority: int = 6, **extra: str) -> None:
        self.host.journal.manager(self.name, self.invocation, message, priority=priority, **extra)

    def answer(self, result: str) -> None:
        job, self._start_job = self._start_job, None
        if job is not None and not job.done():
            job.set_result(result)

    def _fail(self, result: str, *, quiet_state: bool = False) -> None:
        self.result = result
        self.say(f"{self.name}: Failed with result '{result}'.", priority=4, UNIT_RESULT=result)
        if not quiet_state:
            self.set("failed", "failed")

    def set(self, active: str, sub: str) -> None:
        was = self.active
        if (active, sub) != (was, self.sub):
            self.active, self.sub = active, sub
            self.moves.moved(was, active)
            self.host.changed(self, was)
