"""A practice node behind a wire of its own that can be cut; for transaction tests and the fault matrix."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import shutil
import signal
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from console.profile.load import SHIPPED
from console.rehearsal import faults
from console.rehearsal import practice as rehearsal
from console.rehearsal.practice import Practice
from console.rehearsal.seed import OLD_UNIT
from tests.field import OURS, Console, Event, Serving, environment, read_record, shards, start_console

FAST = {"load": 0.03, "tokens": 0.0, "install": 0.0, "hub": 0.0}


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


@dataclass
class Site:
    """A practice node, the wire to it, and the console's own folder."""

    folder: Path
    practice: Practice
    wire: Wire
    deadman: int = 900
    kind: str = "rehearsal"
    disks: dict[str, Path] = field(default_factory=dict)
    """Copies of the node's disk, by `bare` and `prepared`."""

    @property
    def root(self) -> Path:
        return self.practice.root

    @property
    def state(self) -> Path:
        """Relaunch's folder on the node."""
        return self.root / "var/lib/relaunch"

    # the console's side

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
        return await start_console(environment(self.folder, who), *argv, *self.arguments())

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

    async def systemd_stopped(self, seconds: float) -> None:
        raise NotImplementedError("the practice node's init and sshd are one process: freeze is all there is")

    async def disk_will_fill(self) -> None:
        faults.write(self.root / "faults.json", faults.parse(["disk-full"]))

    async def disk_full(self) -> None:
        """It is by itself, in the middle of the download."""

    async def disk_free(self) -> None:
        faults.write(self.root / "faults.json", ())
        (self.root / "disk-limit").unlink(missing_ok=True)
        for hook in self.root.glob("opt/*/lib/python3*/site-packages/sitecustomize.py"):
            hook.unlink()

    async def weights(self) -> dict[str, tuple[int, int]]:
        return await asyncio.to_thread(shards, self.root / "srv/models/Kimi-K2.5-NVFP4")

    async def record(self) -> Event:
        return await read_record(self.state / "deadman/record.json")

    # its disk

    async def furnish(self) -> None:
        prepared = await self.console("--script", "prepare", "--yes")
        assert await prepared.ended(300) == 0, prepared.told()
        self.disks["prepared"] = await keep_disk(self, "prepared")
        for path in ("srv/models/Kimi-K2.5-NVFP4", "opt/vllm-0.16.0", "var/lib/relaunch"):
            await asyncio.to_thread(remove_tree, self.root / path)
        self.disks["bare"] = await keep_disk(self, "bare")

    async def begin(self, *, bare: bool) -> None:
        node = self.folder / "node"
        await rehearsal.stop(node)
        await asyncio.to_thread(_restore_disk, node, self.disks["bare" if bare else "prepared"])
        self.practice = await rehearsal.ensure(node, pace=FAST)
        self.wire.heal()
        await self.until_serving("glm-5")


@asynccontextmanager
async def practice_site(
    folder: Path, *, deadman: int = 900, broken: Sequence[str] = (), disk: Path | None = None
) -> AsyncIterator[Site]:
    """A practice node in `folder`, its old model serving; with `disk` it begins from that copy of its disk."""
    os.makedirs(folder, exist_ok=True)
    if disk is not None:
        _restore_disk(folder / "node", disk)
    made: list[Site] = []
    async with Wire(lambda: (made[0].practice.host, made[0].practice.port)) as wire:
        practice = await rehearsal.ensure(folder / "node", faults=tuple(broken), pace=FAST)
        made.append(Site(folder, practice, wire, deadman))
        try:
            await made[0].until_serving("glm-5")
            yield made[0]
        finally:
            await rehearsal.stop(folder / "node")


def _restore_disk(node: Path, disk: Path) -> None:
    remove_tree(node / "root")
    shutil.copytree(disk, node / "root", symlinks=True)


def remove_tree(path: Path) -> None:
    for base, _, _ in os.walk(path):
        os.chmod(base, 0o700)
    shutil.rmtree(path, ignore_errors=True)


async def keep_disk(site: Site, name: str) -> Path:
    """Power off and copy the node's disk, to begin from again and again."""
    await rehearsal.stop(site.folder / "node")
    disk = site.folder / f"disk-{name}"
    await asyncio.to_thread(shutil.copytree, site.folder / "node/root", disk, symlinks=True, ignore=_volatile)
    return disk


def _volatile(folder: str, names: list[str]) -> set[str]:
    """What a reboot clears, sockets among it."""
    top = folder.endswith("/node/root")
    return {name for name in names if top and name in ("net", "run", "sys", "gpu", "tmp")}
