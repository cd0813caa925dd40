"""One start of a service until its end: an invocation, with its id, its processes, its output and its result.

States, results, texts and their order are those of systemd 252 (`service.c`). An invocation is made anew for each start
and for each automatic restart; `run` lasts until none of its processes is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import uuid
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from console.rehearsal.init.group import Ended, Group, Spawned
from console.rehearsal.init.journal import Output
from console.rehearsal.init.settings import NoEnvironmentFile, comm, default_identifier, environment, status_words
from console.rehearsal.init.spawn import child_name, spawn
from console.rehearsal.init.state import Main
from console.rehearsal.init.text import Command

if TYPE_CHECKING:
    from console.rehearsal.init.service import Service


class Invocation:
    """`run` is called once. `result` is `success` until something went wrong; the first thing that does is kept."""

    def __init__(self, service: Service, stop: asyncio.Event) -> None:
        self.service = service
        self.id = uuid.uuid4().hex
        self.result = "success"
        self.main = Main()
        self.notified = asyncio.Event()
        self._stop = stop
        self._outputs: list[Output] = []
        self._main_future: asyncio.Future[Ended] | None = None
        self._group: Group | None = None

    @property
    def group(self) -> Group:
        """The processes. Raises RuntimeError before there are any and when all is over."""
        if self._group is None:
            raise RuntimeError(f"{self.service.name} has no processes")
        return self._group

    @property
    def pids(self) -> list[int]:
        """Live processes, parents first."""
        return self._group.pids() if self._group is not None else []

    def publish(self) -> None:
        """Make its cgroup.procs true."""
        if self._group is not None:
            self._group.publish()

    def abandon(self) -> None:
        """The power is cut."""
        if self._group is not None:
            self._group.kill()
        self._let_go()

    async def run(self) -> None:
        """Start, run, end; the service's state follows."""
        try:
            if await self._starting():
                self.service.started("running" if self.main.ended is None else "exited")
                await self._running()
            await self._ending()
        finally:
            self._let_go()

    async def _starting(self) -> bool:
        """Until it counts as active. False: it failed or was told to stop; `result` says which."""
        if self.service.settings.type != "simple" or self.service.settings.commands["ExecStartPre"]:
            self.service.say(f"Starting {self.service.title}...", JOB_TYPE="start")
        try:
            self._group = self._open_group()
            env = environment(self.service.settings, self.service.host.base_environment(), self.id)
        except NoEnvironmentFile as error:
            self.service.say(f"{self.service.name}: Failed to load environment files: {error}", priority=3)
            self.service.say(f"{self.service.name}: Failed to run 'start' task: {error}", priority=4)
            self.result = "resources"
            return False
        if self.service.settings.type == "notify":
            env["NOTIFY_SOCKET"] = self.service.host.notify_socket(self)
        try:
            async with asyncio.timeout(_finite(self.service.settings.start_timeout)):
                return await self._start_commands(env)
        except TimeoutError:
            self.service.say(f"{self.service.name}: {self.service.sub} operation timed out. Terminating.", priority=4)
            self.result = "timeout"
            return False

    def _open_group(self) -> Group:
        service = self.service
        folder = service.host.cgroup_folder(service.cgroup_path)
        if service.stdio is not None:
            return Group.start(service.host.reaper, folder, service.stdio)
        commands = self.service.settings.commands["ExecStart"]
        program = commands[0].argv[0] if commands else self.service.name
        fields = {
            "SYSLOG_IDENTIFIER": self.service.settings.identifier or default_identifier(program),
            "SYSLOG_FACILITY": "3",
            "_COMM": default_identifier(program)[:15],
            "_TRANSPORT": "stdout",
            "_UID": str(os.getuid()),
            "_SYSTEMD_UNIT": self.service.name,
            "_SYSTEMD_CGROUP": service.cgroup_path,
            "_SYSTEMD_SLICE": self.service.settings.slice,
            "_SYSTEMD_INVOCATION_ID": self.id,
        }
        # one stream for both, as journald makes two of them that it never orders
        output = Output(self.service.host.journal, fields, lambda: self.main.pid)
        self._outputs.append(output)
        null = os.open(os.devnull, os.O_RDONLY)
        try:
            return Group.start(service.host.reaper, folder, (null, output.end.fileno(), output.end.fileno()))
        finally:
            os.close(null)
            output.end.close()

    async def _start_commands(self, env: dict[str, str]) -> bool:
        self.service.set("activating", "start-pre" if self.service.settings.commands["ExecStartPre"] else "start")
        if not await self._control("ExecStartPre", env):
            return False
        if self.service.settings.type == "oneshot":
            return await self._oneshot(env)
        self.service.set("activating", "start")
        main = await self._spawn(self.service.settings.commands["ExecStart"][0], env)
        self._is_main(main)
        if main.step is not None and self.service.settings.type == "exec":
            self._main_ended(await main.ended)
            return False
        if self.service.settings.type == "notify":
            await self._first(self.notified.wait(), main.ended)
            if main.ended.done():
                self._main_ended(main.ended.result())
                self.result = "protocol" if self.result == "success" else self.result
            if not self.notified.is_set():
                return False
        return not self._stop.is_set() and await self._control("ExecStartPost", env)

    async def _oneshot(self, env: dict[str, str]) -> bool:
        self.service.set("activating", "start")
        for command in self.service.settings.commands["ExecStart"]:
            main = await self._spawn(command, env)
            self._is_main(main)
            await self._first(main.ended)
            if not main.ended.done():
                return False
            self._main_ended(main.ended.result(), command)
            if self.result != "success":
                return False
        if not await self._control("ExecStartPost", env):
            return False
        if not self.service.settings.remain:
            self.service.say(f"Finished {self.service.title}.", JOB_RESULT="done", JOB_TYPE="start")
            self.service.answer("")
        return self.service.settings.remain

    async def _running(self) -> None:
        """Until the main process ends for good or a stop is asked for."""
        if self.main.ended is None and self._main_future is not None:
            ended = self._main_future
            await self._first(ended)
            if ended.done():
                self._main_ended(ended.result())
        if self.service.settings.remain and self.result == "success" and not self._stop.is_set():
            self.service.set("active", "exited")
            await self._stop.wait()

    async def _ending(self) -> None:
        """From the end of the main process, or a stop, until nothing is left."""
        service, asked = self.service, self._stop.is_set()
        commands = service.settings.commands
        if asked:
            service.say(f"Stopping {service.title}...", JOB_TYPE="stop")
        env = {**service.host.base_environment(), **service.settings.environment, "MAINPID": str(self.main.pid)}
        if service.active == "active" and asked and commands["ExecStop"]:
            service.set("deactivating", "stop")
            await self._control("ExecStop", env, until_stop=False)
        await self._end_processes("stop-sigterm", main_first=True)
        if commands["ExecStopPost"]:
            service.set("deactivating", "stop-post")
            await self._control("ExecStopPost", env, until_stop=False)
        await self._end_processes("final-sigterm", main_first=False)

    async def _end_processes(self, sub: str, *, main_first: bool) -> None:
        """SIGTERM what is left, wait, SIGKILL what stays, as KillMode= says."""
        group, mode = self.group, self.service.settings.kill_mode
        main_lives = self.main.lives
        if mode == "none" or (mode == "process" and not main_lives):
            return
        if not group.pids():
            await group.empty.wait()  # the last exit status is on its way
            self._collect_main()
            return
        if main_first and self.main.ended is not None:
            return  # the main process is gone already: ExecStopPost comes first, then the rest
        self.service.set("deactivating", sub)
        only_main = main_first and main_lives and mode in ("mixed", "process")
        if mode == "mixed" and not main_first:
            group.kill()
        else:
            pids = [self.main.pid] if only_main else group.pids()
            group.signal(self.service.settings.kill_signal, pids)
            group.signal(signal.SIGCONT, pids)
        if not await self._gone_within(main_only=only_main):
            await self._kill_rest(sub)
        self._collect_main()

    async def _kill_rest(self, sub: str) -> None:
        self.service.say(f"{self.service.name}: State '{sub}' timed out. Killing.", priority=4)
        if self.result == "success":
            self.result = "timeout"
        self.service.set("deactivating", sub.replace("sigterm", "sigkill"))
        for pid in self.group.pids():
            self.service.say(
                f"{self.service.name}: Killing process {pid} ({comm(pid)}) with signal SIGKILL.", priority=5
            )
        self.group.kill()
        if not await self._gone_within(main_only=False):
            self.service.say(f"{self.service.name}: Processes still around after SIGKILL. Ignoring.", priority=4)

    async def _gone_within(self, *, main_only: bool) -> bool:
        try:
            async with asyncio.timeout(_finite(self.service.settings.stop_timeout)):
                if main_only and self._main_future is not None:
                    await asyncio.shield(self._main_future)
                else:
                    await self.group.empty.wait()
        except TimeoutError:
            return False
        return True

    def _collect_main(self) -> None:
        if self._main_future is not None and self.main.ended is None and self._main_future.done():
            self._main_ended(self._main_future.result())

    def _is_main(self, spawned: Spawned) -> None:
        self.main = Main(pid=spawned.pid)
        self.main.start.now()
        self._main_future = spawned.ended

    def _main_ended(self, ended: Ended, command: Command | None = None) -> None:
        self.main.ended = ended
        self.main.exit.now()
        for output in self._outputs:
            output.pump()  # what it said last comes before what is said of its end
        if self.service.settings.is_clean(ended.code) or (command is not None and command.ignore_failure):
            return
        words = status_words(ended.code, ended.core)
        self.service.say(
            f"{self.service.name}: Main process exited, {words}", priority=5, EXIT_STATUS=str(abs(ended.code))
        )
        if self.result == "success":
            self.result = "exit-code" if ended.code >= 0 else "core-dump" if ended.core else "signal"

    async def _control(self, key: str, env: dict[str, str], *, until_stop: bool = True) -> bool:
        """Run every command of `key` one after another; False when one failed or a stop came."""
        for command in self.service.settings.commands[key]:
            process = await self._spawn(command, env)
            if until_stop:
                await self._first(process.ended)
            else:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_finite(self.service.settings.stop_timeout)):
                        await asyncio.shield(process.ended)
            if not process.ended.done():
                return False
            ended = process.ended.result()
            if ended.code != 0 and not command.ignore_failure:
                self.service.say(
                    f"{self.service.name}: Control process exited, {status_words(ended.code, ended.core)}", priority=5
                )
                if self.result == "success":
                    self.result = "exit-code" if ended.code >= 0 else "signal"
                return False
        return True

    async def _spawn(self, command: Command, env: dict[str, str]) -> Spawned:
        broken = (
            self.service.host.cannot_execute(self.service) and command in self.service.settings.commands["ExecStart"]
        )
        spawned, complaints = await spawn(self.group, self.service.settings, command, env, broken=broken)
        if complaints:
            name = child_name(command, env)
            extra = {
                "_PID": str(spawned.pid), "SYSLOG_IDENTIFIER": name, "_COMM": name, "_SYSTEMD_UNIT": self.service.name,
                "_SYSTEMD_INVOCATION_ID": self.id,
            }  # fmt: skip
            for text in complaints:
                self.service.say(f"{self.service.name}: {text}", priority=3, **extra)
        return spawned

    async def _first(self, *things: asyncio.Future[Ended] | Coroutine[Any, Any, object]) -> None:
        """Wait until one of `things` is done or a stop is asked for; futures stay as they are."""
        stopping = asyncio.ensure_future(self._stop.wait())
        waits: list[asyncio.Future[Any]] = [stopping, *(asyncio.ensure_future(thing) for thing in things)]
        own = [wait for wait in waits if wait not in things]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for future in own:
                future.cancel()

    def _let_go(self) -> None:
        if self._group is not None:
            self._group.close()
            self._group = None
        for output in self._outputs:
            output.close()
        self._outputs.clear()
        self.service.close_stdio()


def _finite(seconds: float) -> float | None:
    return None if seconds == float("inf") else seconds
