"""One unit's processes as a cgroup: a shim process, what runs below it, and ROOT/sys/fs/cgroup/…/cgroup.procs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from console.rehearsal.processes import Reaper, descendants, kill_below, send

_SHIM = Path(__file__).with_name("shim.py")
_INFINITY = resource.RLIM_INFINITY


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended: its code, negative for a signal."""

    code: int
    core: bool


@dataclass(frozen=True, slots=True)
class Spawned:
    """A process that was forked; `step` and `errno` tell why it could not become the program."""

    pid: int
    step: str | None
    errno: int
    ended: asyncio.Future[Ended]


class Group:
    """Made by `start`. `empty` is an event: set while no process of the unit lives."""

    def __init__(self, pid: int, sock: socket.socket, folder: Path) -> None:
        self.pid = pid
        self.empty = asyncio.Event()
        self.empty.set()
        self._sock = sock
        self._folder = folder
        self._number = 0
        self._waiting: dict[int, asyncio.Future[dict[str, object]]] = {}
        self._ended: dict[int, asyncio.Future[Ended]] = {}
        self._rest = b""
        self._published: str | None = None
        asyncio.get_running_loop().add_reader(sock, self._readable)

    @classmethod
    def start(cls, reaper: Reaper, folder: Path, fds: tuple[int, int, int], pass_fds: Sequence[int] = ()) -> Group:
        """Start the shim with the unit's stdin, stdout and stderr; `folder` is where its cgroup.procs stands."""
        mine, its = socket.socketpair()
        with its:
            pid, _ = reaper.spawn(
                (sys.executable, "-I", "-S", str(_SHIM), str(its.fileno())),
                env={}, cwd="/", stdin=fds[0], stdout=fds[1], stderr=fds[2], pass_fds=(its.fileno(), *pass_fds),
            )  # fmt: skip
        mine.setblocking(False)
        folder.mkdir(parents=True, exist_ok=True)
        return cls(pid, mine, folder)

    async def spawn(
        self,
        argv: Sequence[str],
        path: str,
        *,
        env: Mapping[str, str],
        cwd: str,
        limits: Sequence[Sequence[int]],
        umask: int,
        fail: tuple[str, int] | None = None,
    ) -> Spawned:
        """Run `path` with `argv` in a session of its own, or fail at a step with an errno as if it could not be run."""
        self._number += 1
        answer: asyncio.Future[dict[str, object]] = asyncio.get_running_loop().create_future()
        self._waiting[self._number] = answer
        self.empty.clear()
        request = {
            "id": self._number, "argv": list(argv), "path": path, "env": dict(env), "cwd": cwd,
            "limits": [[-1 if number == _INFINITY else number for number in row] for row in limits], "umask": umask,
            "fail": fail,
        }  # fmt: skip
        await asyncio.get_running_loop().sock_sendall(self._sock, json.dumps(request).encode() + b"\n")
        said = await answer
        pid = int(str(said["pid"]))
        self.publish()
        step = said.get("step")
        return Spawned(pid, None if step is None else str(step), int(str(said.get("errno") or 0)), self._ended[pid])

    def _readable(self) -> None:
        try:
            data = self._sock.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lost()
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._heard(json.loads(line))

    def _heard(self, said: dict[str, object]) -> None:
        if "id" in said:
            pid = int(str(said["pid"]))
            self._ended.setdefault(pid, asyncio.get_running_loop().create_future())
            self._waiting.pop(int(str(said["id"]))).set_result(said)
        elif "gone" in said:
            future = self._ended.get(int(str(said["gone"])))
            if future is not None and not future.done():
                future.set_result(Ended(int(str(said["code"])), bool(said.get("core"))))
        elif "empty" in said and not self._waiting:
            self.empty.set()
        self.publish()

    def _lost(self) -> None:
        """The shim is gone, and with it all of its processes."""
        asyncio.get_running_loop().remove_reader(self._sock)
        for future in self._ended.values():
            if not future.done():
                future.set_result(Ended(-signal.SIGKILL, False))
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(ChildProcessError("the unit's shim was killed"))
        self.empty.set()

    def pids(self) -> list[int]:
        """Live processes of the unit, parents first."""
        return descendants(self.pid)

    def signal(self, number: int, pids: Sequence[int]) -> None:
        for pid in pids:
            send(pid, number)

    def kill(self) -> None:
        """SIGKILL all of it."""
        kill_below(self.pid)

    def publish(self) -> None:
        """Make cgroup.procs true. It is replaced whole, so that nobody reads half of it."""
        text = "".join(f"{pid}\n" for pid in self.pids())
        if text == self._published:
            return
        self._published = text
        events = f"populated {int(bool(text))}\nfrozen 0\n"
        with contextlib.suppress(OSError):
            for name, content in (("cgroup.procs", text), ("cgroup.events", events)):
                staged = self._folder / f".{name}.new"
                staged.write_text(content)
                staged.replace(self._folder / name)

    def close(self) -> None:
        """Let the shim end; whatever still ran under it is killed, and the cgroup is removed."""
        if self._sock.fileno() < 0:
            return
        asyncio.get_running_loop().remove_reader(self._sock)
        self._sock.close()
        for name in ("cgroup.procs", "cgroup.events"):
            (self._folder / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            os.rmdir(self._folder)
