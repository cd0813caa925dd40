"""What the systemd contracts stand on: unit files on a node, systemctl and journalctl asked, and all of it taken away again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from console.node import systemd
from console.node.base import Done, Node, capture

_STATE = "LoadState,ActiveState,SubState,Result,MainPID,ExecMainCode,ExecMainStatus,NRestarts,InvocationID,ControlGroup"


@dataclass(slots=True)
class Units:
    """A node whose login is root or may become it, the folder for unit files, and an empty folder for what units write."""

    node: Node
    folder: str
    scratch: str
    cgroup: str
    made: list[str] = field(default_factory=list)

    async def run(self, *argv: str, input: bytes | None = None) -> Done:
        answer = await self.node.run(argv, timeout=60, sudo=True, input=input)
        assert isinstance(answer, Done), answer
        return answer

    async def put(self, name: str, service: str, unit: str = "", install: str = "") -> str:
        """Install a unit file and let systemd read it; returns its name."""
        text = f"[Unit]\nDescription=Contract {name}\n{unit}\n[Service]\n{service}\n{install}"
        await self.node.write(f"{self.folder}/{name}", text.encode(), sudo=True)
        self.made.append(name)
        await self.ok("systemctl", "daemon-reload")
        return name

    async def ok(self, *argv: str) -> str:
        answer = await self.run(*argv)
        assert answer.code == 0, answer
        return answer.out

    async def show(self, name: str, properties: str = _STATE) -> dict[str, str]:
        out = await self.ok("systemctl", "show", "-p", properties, name)
        return dict(line.partition("=")[::2] for line in out.splitlines())

    async def until(self, name: str, **wanted: str) -> dict[str, str]:
        """The unit's properties once they are as wanted. systemd tells changes over D-Bus, a bare `show` has to look."""
        async with asyncio.timeout(30):
            while True:
                found = await self.show(name)
                if all(found[key] == value for key, value in wanted.items()):
                    return found
                await asyncio.sleep(0.05)

    async def members(self, name: str) -> set[str]:
        group = (await self.show(name, "ControlGroup"))["ControlGroup"]
        answer = await self.run("cat", f"{self.cgroup}{group}/cgroup.procs")
        return set(answer.out.split()) if group else set()

    async def log(self, name: str, *options: str) -> list[dict[str, object]]:
        out = await self.ok("journalctl", "-q", "--no-pager", "--all", "-o", "json", "-u", name, *options)
        return [json.loads(line) for line in out.splitlines()]

    async def said(self, name: str) -> str:
        return await self.ok("journalctl", "-q", "--no-pager", "-o", "cat", "-u", name)

    async def hears(self, name: str, *texts: str) -> str:
        """The unit's log once all `texts` stand in it: journald writes a moment after systemd has answered."""
        async with asyncio.timeout(30):
            while True:
                said = await self.said(name)
                if all(text in said for text in texts):
                    return said
                await asyncio.sleep(0.1)

    async def read(self, name: str) -> str:
        return (await self.node.read(f"{self.scratch}/{name}", sudo=True)).decode()


@asynccontextmanager
async def units_of(node: Node, cgroup: str) -> AsyncIterator[Units]:
    """Ready to use; afterwards every unit that was made is stopped, forgotten and removed."""
    path = await capture(node, ("systemctl", "show", "-p", "UnitPath", "--value"))
    folder = next(word for word in path.split() if word.endswith("/etc/systemd/system"))
    scratch = (await capture(node, ("mktemp", "-d"))).strip()
    await node.run(("chmod", "755", scratch), timeout=30, sudo=True)
    units = Units(node, folder, scratch, cgroup)
    try:
        yield units
    finally:
        for name in units.made:
            await units.run("systemctl", "disable", "--now", name)
            await units.run("systemctl", "reset-failed", name)
            await units.run("rm", "-rf", f"{folder}/{name}", f"{folder}/{name}.d")
        await units.run("rm", "-rf", scratch)
        await units.run("systemctl", "daemon-reload")


def sh(script: str) -> str:
    """ExecStart= of a shell script."""
    return "ExecStart=" + systemd.exec_line(("/bin/sh", "-c", script))


# ---------------------------------------------------------------------------------------------------------- starting


def message_of(entry: dict[str, object]) -> str:
    message = entry["MESSAGE"]
    return bytes(message).decode() if isinstance(message, list) else str(message)


async def eventually(holds: Callable[[], Awaitable[bool]]) -> None:
    """Wait for what a process on the node does by itself and tells nobody."""
    async with asyncio.timeout(30):
        while not await holds():  # noqa: ASYNC110 - it happens on another machine
            await asyncio.sleep(0.05)


async def counts(units: Units, name: str, wanted: int) -> bool:
    return len(await units.members(name)) == wanted


async def ignores_sigterm(units: Units, pid: str) -> bool:
    """Whether the process ignores SIGTERM by now."""
    status = (await units.node.read(f"/proc/{pid}/status", sudo=True)).decode()
    mask = next(line.split()[1] for line in status.splitlines() if line.startswith("SigIgn"))
    return bool(int(mask, 16) & 1 << 14)


async def has_text(units: Units, name: str) -> bool:
    return (await units.run("test", "-s", f"{units.scratch}/{name}")).code == 0


async def exists(units: Units, path: str) -> bool:
    return (await units.run("test", "-e", path)).code == 0


async def says(units: Units, name: str, text: str) -> bool:
    return text in (await units.said(name)).splitlines()


Check = Callable[[Units], Awaitable[None]]
