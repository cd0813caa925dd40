"""Consoles as real processes, on a site where things can be made to go wrong: for the transaction tests and the fault matrix.

    async with practice_site(folder) as site:          # a practice node behind a wire of its own
        console = await site.console("--script", "redeploy", "--yes")
        await console.until("launch", "running")
        console.kill()                                 # SIGKILL
        again = await site.console("resume", "--yes")
        assert await again.ended() == 0
        assert (await site.serving()).model == "kimi-k2.5"

A console here is `python -m console … --json` in a process of its own; its events are read from its stdout as they come.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import shutil
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from console.profile.load import SHIPPED
from console.rehearsal import practice as rehearsal
from console.rehearsal.practice import Practice
from console.rehearsal.seed import OLD_UNIT

HERE = Path(__file__).parents[1]
OURS = "vllm-kimi.service"
FAST = {"load": 0.03, "tokens": 0.0, "install": 0.0, "hub": 0.0}
Event = dict[str, Any]


@dataclass
class Console:
    """A `relaunch` process and what it has said."""

    process: asyncio.subprocess.Process
    events: list[Event] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    _news: asyncio.Condition = field(default_factory=asyncio.Condition)
    _readers: list[asyncio.Future[None]] = field(default_factory=list)

    async def _read_events(self) -> None:
        assert self.process.stdout is not None
        async for raw in self.process.stdout:
            with contextlib.suppress(ValueError):
                self.events.append(json.loads(raw))
            async with self._news:
                self._news.notify_all()

    async def _read_words(self) -> None:
        assert self.process.stderr is not None
        async for raw in self.process.stderr:
            self.words.append(raw.decode(errors="replace").rstrip())

    async def until(self, step: str, *states: str, limit: float = 90) -> bool:
        """Wait until the step is in one of these states; False when the console ended first."""

        def seen() -> bool:
            return any(e.get("event") == "step" and e["step"] == step and e["state"] in states for e in self.events)

        return await self.until_seen(seen, limit=limit)

    async def until_seen(self, seen: Callable[[], bool], *, limit: float = 90) -> bool:
        async with asyncio.timeout(limit):
            while not seen():
                if self._readers[0].done():
                    return seen()
                async with self._news:
                    with contextlib.suppress(TimeoutError):
                        # the end of the output notifies nobody
                        await asyncio.wait_for(self._news.wait(), 0.1)
        return True

    async def ended(self, limit: float = 110) -> int:
        """Its exit code; negative for a signal."""
        async with asyncio.timeout(limit):
            code = await self.process.wait()
            await asyncio.gather(*self._readers)
        return code

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def terminate(self) -> None:
        self._send(signal.SIGTERM)

    def _send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    def of(self, kind: str) -> list[Event]:
        return [event for event in self.events if event.get("event") == kind]

    def told(self) -> str:
        """Everything it said, for a failed assertion."""
        lines = [
            f"{e['step']} {e['state']} {e.get('detail', '')}"
            if e["event"] == "step"
            else f"{e['event']}: {e.get('text', '')}"
            for e in self.events
            if e.get("event") in ("step", "note", "cause", "run-ended")
        ]
        return "\n".join([*lines, *self.words])


async def start_console(environment: dict[str, str], *argv: str) -> Console:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "console", *argv, "--json",
        cwd=HERE, env=environment, stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, limit=1 << 22,
    )  # fmt: skip
    console = Console(process)
    console._readers = [asyncio.ensure_future(console._read_events()), asyncio.ensure_future(console._read_words())]
    return console


class Wire:
    """A TCP relay in front of sshd that can be cut: nothing passes, and nobody is told."""

    def __init__(self, where: Callable[[], tuple[str, int]]) -> None:
        self._where = where
        self._open = asyncio.Event()
        self._open.set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self.port = 0

    async def __aenter__(self) -> Wire:
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        self._open.clear()

    def heal(self) -> None:
        self._open.set()

    def drop(self) -> None:
        """Every connection ends, as when a router forgets them."""
        for task in tuple(self._tasks):
            task.cancel()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._open.wait()
            try:
                far_reader, far_writer = await asyncio.open_connection(*self._where())
            except OSError:
                return
            try:
                pumps = [
                    asyncio.ensure_future(self._pump(*pair)) for pair in ((reader, far_writer), (far_reader, writer))
                ]
                try:
                    await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for pump in pumps:
                        pump.cancel()  # also when the wire is dropped
                    await asyncio.gather(*pumps, return_exceptions=True)
            finally:
                far_writer.close()
        except asyncio.CancelledError:
            pass  # dropped; asyncio's own server would call it a defect
        finally:
            writer.close()
            self._tasks.discard(task)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                await self._open.wait()
                writer.write(data)
                await writer.drain()


@dataclass(frozen=True, slots=True)
class Serving:
    """What answers on the service's port. None: nobody."""

    model: str | None
    health: int | None


@dataclass
class Site:
    """A practice node, the wire to it, and the console's own folder."""

    folder: Path
    practice: Practice
    wire: Wire
    deadman: int = 900
    kind: str = "rehearsal"

    @property
    def root(self) -> Path:
        return self.practice.root

    @property
    def state(self) -> Path:
        """Relaunch's folder on the node."""
        return self.root / "var/lib/relaunch"

    # the console's side

    def environment(self, who: str = "me") -> dict[str, str]:
        home = self.folder / f"home-{who}"
        home.mkdir(exist_ok=True)
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
        return {**kept, "HOME": str(home), "XDG_STATE_HOME": str(home / "state"), "LANG": "C.UTF-8", "USER": who}

    def arguments(self) -> tuple[str, ...]:
        """Node and profile, written anew each time: a node that was started again has another port behind the wire."""
        entry = {
            "host": "127.0.0.1", "port": self.wire.port, "user": self.practice.user,
            "identity": str(self.practice.client_key), "host_key": self.practice.host_key.split(" ", 1)[1],
            "known_hosts": [],
        }  # fmt: skip
        nodes = self.folder / "nodes.yaml"
        nodes.write_text(yaml.safe_dump({"nodes": {"box": entry}}))
        data = yaml.safe_load((Path(SHIPPED) / "rehearsal.yaml").read_text())
        data["name"], data["deadman_seconds"] = "field", self.deadman
        data["model"]["endpoint"] = self.practice.hub
        data["model"]["revision"] = str(data["model"]["revision"])
        data["throughput"] = {
            "points": [{"concurrency": 1, "prompts": 1, "input_tokens": 16, "output_tokens": 8}],
            "gates": [{"concurrency": 1, "min_output_tokens_per_s": 0.01}],
        }
        profile = self.folder / "field.yaml"
        profile.write_text(yaml.safe_dump(data))
        return ("--nodes", str(nodes), "--node", "box", "--profile", str(profile))

    async def console(self, *argv: str, who: str = "me") -> Console:
        return await start_console(self.environment(who), *argv, *self.arguments())

    async def redeploy(self) -> Console:
        return await self.console("--script", "redeploy", "--yes")

    # behind the console's back

    async def sh(self, *argv: str) -> str:
        """A command on the node, past the console and its wire."""
        root = str(self.root)
        environment = {
            **os.environ, "HOME": root, "RELAUNCH_PRACTICE_ROOT": root, "PATH": f"{root}/bin{os.pathsep}{os.environ['PATH']}",
        }  # fmt: skip
        process = await asyncio.create_subprocess_exec(
            *argv, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
            stdin=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        out, _ = await process.communicate()
        return out.decode()

    async def serving(self) -> Serving:
        return await asyncio.to_thread(self._serving)

    def _serving(self) -> Serving:
        health = self._get("/health")
        models = self._get("/v1/models")
        name = None
        if models is not None and models[0] == 200:
            name = json.loads(models[1])["data"][0]["id"]
        return Serving(name, None if health is None else health[0])

    def _get(self, path: str) -> tuple[int, bytes] | None:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
                link.settimeout(10)
                link.connect(os.path.realpath(self.root / "net/8000.sock"))
                link.sendall(f"GET {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n".encode())
                data = b"".join(iter(lambda: link.recv(65536), b""))
        except OSError:
            return None
        head, _, body = data.partition(b"\r\n\r\n")
        return int(head.split()[1]), body

    async def until_serving(self, model: str, limit: float = 60) -> None:
        async with asyncio.timeout(limit):
            while (await self.serving()).model != model:  # noqa: ASYNC110
                await asyncio.sleep(0.1)  # a server tells nobody when it begins to listen

    async def state_of(self, unit: str) -> str:
        return (await self.sh("systemctl", "show", "-p", "ActiveState", "--value", unit)).strip()

    def audit(self) -> list[Event]:
        path = self.state / "audit.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    async def left_behind(self) -> list[str]:
        """What a finished transaction must not leave: lock, timer, jobs, temporary files, a second model."""
        found = [str(path.relative_to(self.root)) for path in (self.state / "lock.json", self.state / "deadman/plan.json")
                 if path.exists()]  # fmt: skip
        for place in ("var/lib/relaunch", "etc", "srv"):
            for path in (self.root / place).rglob("*"):
                if path.name.startswith(".relaunch-") or path.name.endswith((".new", ".incomplete")):
                    found.append(str(path.relative_to(self.root)))
        listed = await self.sh("systemctl", "list-units", "--all", "--no-legend", "--plain")
        units = [line.split() for line in listed.splitlines() if line.split()]
        found += [unit[0] for unit in units if unit[0].startswith("relaunch-") and unit[2] in ("active", "activating")]
        up = [unit for unit in (OURS, OLD_UNIT) if await self.state_of(unit) == "active"]
        if len(up) != 1:
            found.append(f"models up: {', '.join(up) or 'none'}")
        return found

    # what goes wrong

    async def freeze(self, seconds: float) -> None:
        os.kill(self.practice.pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)  # the fault itself
        finally:
            os.kill(self.practice.pid, signal.SIGCONT)

    async def cut(self) -> None:
        """The link is gone until `heal`."""
        self.wire.cut()

    async def heal(self) -> None:
        self.wire.heal()

    async def cut_and_heal(self, seconds: float) -> None:
        """Every connection breaks, and for a while no new one comes about."""
        self.wire.cut()
        self.wire.drop()
        await asyncio.sleep(seconds)  # the fault itself
        self.wire.heal()

    async def power_cycle(self) -> None:
        """The power goes and comes: nothing is told to end, and the disk stays as it is."""
        handle = os.pidfd_open(self.practice.pid)
        os.kill(self.practice.pid, signal.SIGKILL)
        await asyncio.to_thread(select.select, [handle], [], [])
        os.close(handle)
        self.wire.drop()
        self.practice = await rehearsal.ensure(self.folder / "node", pace=FAST)

    def weights(self) -> dict[str, tuple[int, int]]:
        """Inode and time of every shard that is there under its name: a file that is fetched again has others."""
        folder = self.root / "srv/models/Kimi-K2.5-NVFP4"
        return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in folder.glob("*.safetensors")}

    def record(self) -> Event:
        """What the dead man's switch wrote down; empty when it did not act."""
        path = self.state / "deadman/record.json"
        found: Event = json.loads(path.read_text()) if path.exists() else {}
        return found


@asynccontextmanager
async def practice_site(
    folder: Path, *, deadman: int = 900, faults: Sequence[str] = (), disk: Path | None = None
) -> AsyncIterator[Site]:
    """A practice node in `folder`, its old model serving; with `disk` it begins from that copy of its disk."""
    os.makedirs(folder, exist_ok=True)
    if disk is not None:
        _restore_disk(folder / "node", disk)
    made: list[Site] = []
    async with Wire(lambda: (made[0].practice.host, made[0].practice.port)) as wire:
        practice = await rehearsal.ensure(folder / "node", faults=tuple(faults), pace=FAST)
        made.append(Site(folder, practice, wire, deadman))
        try:
            await made[0].until_serving("glm-5")
            yield made[0]
        finally:
            await rehearsal.stop(folder / "node")


async def begin_again(site: Site, disk: Path | None) -> None:
    """The node as it was when its disk was kept with `keep_disk`, freshly booted, the old model serving; None: just boot."""
    folder = site.folder / "node"
    await rehearsal.stop(folder)
    if disk is not None:
        _restore_disk(folder, disk)
    site.practice = await rehearsal.ensure(folder, pace=FAST)
    site.wire.heal()
    await site.until_serving("glm-5")


def _restore_disk(node: Path, disk: Path) -> None:
    for base, _, _ in os.walk(node / "root"):
        os.chmod(base, 0o700)
    shutil.rmtree(node / "root", ignore_errors=True)
    shutil.copytree(disk, node / "root", symlinks=True)


async def keep_disk(site: Site, name: str) -> Path:
    """Power off and copy the node's disk, to begin from again and again."""
    await rehearsal.stop(site.folder / "node")
    disk = site.folder / f"disk-{name}"
    shutil.copytree(site.folder / "node/root", disk, symlinks=True, ignore=_volatile)
    return disk


def _volatile(folder: str, names: list[str]) -> set[str]:
    """What a reboot clears, sockets among it."""
    top = folder.endswith("/node/root")
    return {name for name in names if top and name in ("net", "run", "sys", "gpu", "tmp")}
