"""A real node as ground: systemd as PID 1, OpenSSH, TCP; GPUs, vLLM and hub are stand-ins (`tests/node/gpu_box.py`)."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shlex
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.field import OURS, Console, Event, Serving, environment, read_record, shards, start_console
from tests.node.gpu_box import PRACTICE, GpuBox, furnish, gpu_box
from tests.node.lab import CACHE, open_lab

_ASK = """\
import json, sys, time, urllib.request
wanted, end, name = sys.argv[1], time.monotonic() + float(sys.argv[2]), ""
while True:
    try:
        with urllib.request.urlopen("http://127.0.0.1:8000/v1/models", timeout=10) as answer:
            name = json.load(answer)["data"][0]["id"]
    except Exception:
        name = ""
    if name == wanted or time.monotonic() > end:
        break
    time.sleep(0.1)  # a server tells nobody when it begins to listen
print(name)
"""
_KEPT = "/var/tmp/kept.tar"
_MADE = "opt/vllm-0.16.0 srv/models/Kimi-K2.5-NVFP4 var/lib/relaunch"
"""What Relaunch makes on the node, beside the unit; below `/`."""
_FILLER = "/var/tmp/filler"
_MEMORY = f"""\
echo 'd /run/practice-gpu' >/etc/tmpfiles.d/practice.conf && systemd-tmpfiles --create practice.conf
systemctl stop vllm-glm5.service; rm -rf {PRACTICE}/gpu; ln -s /run/practice-gpu {PRACTICE}/gpu
"""
"""The memory of the GPUs is on no disk that could be full."""


@dataclass
class LabSite:
    """The box, the folder of the console's own files, and who logs in."""

    folder: Path
    box: GpuBox
    user: str = "root"
    deadman: int = 900
    kind: str = "real"

    @property
    def root(self) -> Path:
        """The node's disk as this machine sees it, past the network. Absolute symlinks there lead astray."""
        return Path(f"/proc/{self._init()}/root")

    def _init(self) -> int:
        return int((self.box.machine.folder / "init.pid").read_text().split()[0])

    def arguments(self) -> tuple[str, ...]:
        machine = self.box.machine
        entry = {
            "host": machine.address, "user": self.user, "identity": str(CACHE / "id_ed25519"),
            "known_hosts": str(machine.folder / "known_hosts"),
        }  # fmt: skip
        (self.folder / "nodes.yaml").write_text(yaml.safe_dump({"nodes": {"box": entry}}))
        data = self.box.profile.model_dump(mode="json", exclude_none=True)
        data |= {"name": "field", "deadman_seconds": self.deadman}
        data["throughput"] = {
            "points": [{"concurrency": 1, "prompts": 1, "input_tokens": 16, "output_tokens": 8}],
            "gates": [{"concurrency": 1, "min_output_tokens_per_s": 0.01}],
        }
        (self.folder / "field.yaml").write_text(yaml.safe_dump(data))
        return (
            "--nodes", str(self.folder / "nodes.yaml"), "--node", "box", "--profile", str(self.folder / "field.yaml"),
        )  # fmt: skip

    async def console(self, *argv: str, who: str = "me") -> Console:
        return await start_console(environment(self.folder, who), *argv, *self.arguments())

    async def redeploy(self) -> Console:
        return await self.console("--script", "redeploy", "--yes")

    # behind the console's back

    async def sh(self, *argv: str) -> str:
        return await self.shell(shlex.join(argv))

    async def shell(self, line: str) -> str:
        return await asyncio.to_thread(self.box.machine.ssh, line, check=False)

    async def serving(self) -> Serving:
        name = (await self.sh("python3", "-I", "-c", _ASK, "", "0")).strip()
        return Serving(name or None, 200 if name else None)

    async def audit(self) -> list[Event]:
        text = await self.sh("cat", "/var/lib/relaunch/audit.jsonl")
        return [json.loads(line) for line in text.splitlines()]

    async def record(self) -> Event:
        return await read_record(self.root / "var/lib/relaunch/deadman/record.json")

    async def weights(self) -> dict[str, tuple[int, int]]:
        return await asyncio.to_thread(shards, self.root / "srv/models/Kimi-K2.5-NVFP4")

    async def left_behind(self) -> list[str]:
        found = (
            await self.shell(
                "ls /var/lib/relaunch/lock.json /var/lib/relaunch/deadman/plan.json 2>/dev/null;"
                "find /var/lib/relaunch /etc/systemd/system /srv -name '.relaunch-*' -o -name '*.new' -o -name '*.incomplete';"
                "systemctl list-units --all --no-legend --plain 'relaunch-*' | awk '$3==\"active\" {print $1}';"
                f"for unit in {OURS} vllm-glm5.service; do systemctl is-active -q $unit && echo up:$unit; done"
            )
        ).split()
        up = [word for word in found if word.startswith("up:")]
        return [word for word in found if word not in up] + ([] if len(up) == 1 else [f"models up: {len(up)}"])

    # how it begins

    async def furnish(self) -> None:
        await self.begin(bare=True)
        prepared = await self.console("--script", "prepare", "--yes")
        assert await prepared.ended(300) == 0, prepared.told()
        await self.shell(f"rm /var/lib/relaunch/audit.jsonl; cd / && tar -cf {_KEPT} {_MADE} && sync -f {_KEPT}")

    async def furnished(self) -> bool:
        return await self.shell(f"ls {_KEPT} >/dev/null 2>&1 && echo yes") == "yes\n"

    async def begin(self, *, bare: bool) -> None:
        if await self.shell("echo fine") != "fine\n":
            await self.power_cycle()
        back = "" if bare else f"tar -xpf {_KEPT};"
        ask = shlex.join(("python3", "-I", "-c", _ASK, "glm-5", "90"))
        name = await self.shell(
            f"cd /; {_pace(0.02)}; systemctl stop 'relaunch-*' {OURS} 2>/dev/null; systemctl disable -q {OURS} 2>/dev/null;"
            f"rm -rf /etc/systemd/system/{OURS}* /etc/systemd/system/relaunch-*"
            f" /etc/systemd/system/*.wants/relaunch-* {_FILLER} {_MADE}; {back}"
            f"systemctl daemon-reload; systemctl reset-failed; systemctl enable -q --now vllm-glm5.service; {ask}; {_pace(0.2)}"
        )
        assert name.strip() == "glm-5", f"the old model does not serve: {name}"

    # what goes wrong

    async def cut(self) -> None:
        await asyncio.to_thread(self.box.machine.lab.script, "cut", self.box.machine.name)

    async def heal(self) -> None:
        await asyncio.to_thread(self.box.machine.lab.script, "heal", self.box.machine.name)

    async def cut_and_heal(self, seconds: float) -> None:
        await asyncio.to_thread(self.box.machine.lab.script, "refuse", self.box.machine.name)
        try:
            await asyncio.sleep(seconds)  # the fault itself
        finally:
            await asyncio.to_thread(self.box.machine.lab.script, "admit", self.box.machine.name)

    async def freeze(self, seconds: float) -> None:
        await asyncio.to_thread(self.box.machine.lab.script, "freeze", self.box.machine.name)
        try:
            await asyncio.sleep(seconds)  # the fault itself
        finally:
            await asyncio.to_thread(self.box.machine.lab.script, "thaw", self.box.machine.name)

    async def power_cycle(self) -> None:
        await asyncio.to_thread(self.box.machine.reset)

    async def systemd_stopped(self, seconds: float) -> None:
        """PID 1 does nothing for a while: no unit starts or stops, sshd and services go on."""
        pid = self._init()
        os.kill(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)  # the fault itself
        finally:
            os.kill(pid, signal.SIGCONT)

    async def disk_will_fill(self) -> None:
        """It fills at any moment."""

    async def disk_full(self) -> None:
        await asyncio.to_thread(_fill, self.root / _FILLER.lstrip("/"))

    async def disk_free(self) -> None:
        await asyncio.to_thread((self.root / _FILLER.lstrip("/")).unlink, missing_ok=True)


def _pace(load: float) -> str:
    """A shell line that says how fast the stand-ins load."""
    text = json.dumps({"load": load, "tokens": 0.0, "hub": 0})
    return f"echo {shlex.quote(text)} >{PRACTICE}/pace.json"


def _fill(path: Path) -> None:
    """Not a block is left on the disk that `path` is on, whoever writes meanwhile."""
    with path.open("wb", buffering=0) as filler:
        piece, size = 1 << 30, 0
        while piece >= os.statvfs(path).f_frsize:
            try:
                os.posix_fallocate(filler.fileno(), size, piece)
                size += piece
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                piece //= 2


@asynccontextmanager
async def lab_site(folder: Path, disk: str = "700m") -> AsyncIterator[LabSite]:
    """A node of one's own lab, furnished; `disk` is the size of all that it can write. `folder` is there. Raises NoLab."""
    os.environ["NODE_DISK"] = disk
    with open_lab() as lab:
        machine = await asyncio.to_thread(lab.boot, "matrix")
        await asyncio.to_thread(furnish, machine, folder)
        await asyncio.to_thread(machine.ssh, _MEMORY)
        async with gpu_box(machine, folder) as box:
            yield LabSite(folder, box)
