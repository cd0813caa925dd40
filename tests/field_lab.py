"""A site on a real node: systemd as PID 1, OpenSSH, TCP; GPUs, vLLM and hub are stand-ins (`tests/node/gpu_box.py`)."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.field import OURS, Console, Event, Serving, start_console
from tests.node.gpu_box import GpuBox
from tests.node.lab import CACHE

_ASK = """\
import json, urllib.request
try: print(json.load(urllib.request.urlopen("http://127.0.0.1:8000/v1/models", timeout=10))["data"][0]["id"])
except Exception: print("")
"""


@dataclass
class LabSite:
    """The box, the folder of the console's own files, and who logs in."""

    folder: Path
    box: GpuBox
    user: str = "root"
    deadman: int = 900
    kind: str = "real"

    def environment(self, who: str = "me") -> dict[str, str]:
        home = self.folder / f"home-{who}"
        home.mkdir(exist_ok=True)
        kept = {name: os.environ[name] for name in ("PATH", "TMPDIR") if name in os.environ}
        return {**kept, "HOME": str(home), "XDG_STATE_HOME": str(home / "state"), "LANG": "C.UTF-8", "USER": who}

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
        return await start_console(self.environment(who), *argv, *self.arguments())

    async def redeploy(self) -> Console:
        return await self.console("--script", "redeploy", "--yes")

    # behind the console's back

    async def sh(self, *argv: str) -> str:
        return await self.shell(shlex.join(argv))

    async def shell(self, line: str) -> str:
        return await asyncio.to_thread(self.box.machine.ssh, line, check=False)

    async def serving(self) -> Serving:
        name = (await self.sh("python3", "-c", _ASK)).strip()
        return Serving(name or None, 200 if name else None)

    async def until_serving(self, model: str, limit: float = 90) -> None:
        async with asyncio.timeout(limit):
            while (await self.serving()).model != model:  # noqa: ASYNC110
                await asyncio.sleep(0.3)  # a server tells nobody when it begins to listen

    async def state_of(self, unit: str) -> str:
        return (await self.sh("systemctl", "show", "-p", "ActiveState", "--value", unit)).strip()

    async def audit(self) -> list[Event]:
        text = await self.sh("cat", "/var/lib/relaunch/audit.jsonl")
        return [json.loads(line) for line in text.splitlines()]

    async def record(self) -> Event:
        text = await self.sh("cat", "/var/lib/relaunch/deadman/record.json")
        found: Event = json.loads(text) if text.strip() else {}
        return found

    async def left_behind(self) -> list[str]:
        found = (
            await self.shell(
                "ls /var/lib/relaunch/lock.json /var/lib/relaunch/deadman/plan.json 2>/dev/null;"
                "find /var/lib/relaunch /etc/systemd/system /srv -name '.relaunch-*' -o -name '*.new' -o -name '*.incomplete';"
                "systemctl list-units --all --no-legend --plain 'relaunch-*' | awk '$3==\"active\" {print $1}'"
            )
        ).split()
        up = [unit for unit in (OURS, "vllm-glm5.service") if await self.state_of(unit) == "active"]
        return found if len(up) == 1 else [*found, f"models up: {', '.join(up) or 'none'}"]

    async def begin_again(self, *, prepared: bool = True) -> None:
        """The old model serves, nothing of Relaunch is there but, when `prepared`, what needs no downtime."""
        gone = "" if prepared else "/opt/vllm-0.16.0 /srv/models/Kimi-K2.5-NVFP4 /var/lib/relaunch"
        await self.shell(
            "systemctl stop relaunch-deadman.timer relaunch-deadman.service vllm-kimi.service 2>/dev/null;"
            "systemctl disable -q vllm-kimi.service 2>/dev/null; rm -f /etc/systemd/system/vllm-kimi.service;"
            "cd /var/lib/relaunch 2>/dev/null && rm -rf lock.json deadman releases last-good audit.jsonl former;"
            f"rm -rf none {gone}; systemctl daemon-reload; systemctl enable -q --now vllm-glm5.service"
        )
        await self.until_serving("glm-5")

    # what goes wrong

    async def power_cycle(self) -> None:
        await asyncio.to_thread(self.box.machine.reset)

    async def systemd_stopped(self, seconds: float) -> None:
        """PID 1 does nothing for a while: no unit starts or stops, sshd and services go on."""
        pid = int((self.box.machine.folder / "init.pid").read_text().split()[0])
        os.kill(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)  # the fault itself
        finally:
            os.kill(pid, signal.SIGCONT)
