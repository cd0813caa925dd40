"""The node of these tests: a real systemd, OpenSSH and vLLM; only the GPUs are a stand-in `nvidia-smi`.

All runs are synchronous for the test that asks for them, one event loop each, so that one node serves the whole session.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import console.rehearsal
from console.checkpoint.probe import cache_file
from console.deploy.question import redeploy_question
from console.deploy.script import load_script
from console.deploy.store import open_store
from console.engine import Engine, RunOptions, agree
from console.events import CauseFound, Event, Found, RunEnded, StepChanged
from console.node.facts import read_facts
from console.node.ssh import connect
from console.profile.load import load_profile
from console.profile.model import Profile
from console.rehearsal.hub import start_hub
from tests.node.lab import Machine

PRACTICE = "/var/lib/relaunch-practice"
PROFILE = Path(__file__).with_name("tiny-kimi-cpu.yaml")
_STANDINS = Path(console.rehearsal.__file__).parent


@dataclass(frozen=True, slots=True)
class Ran:
    """One run: how it ended, and everything it said."""

    end: RunEnded
    events: tuple[Event, ...]

    @property
    def states(self) -> dict[str, str]:
        """The last state of every step."""
        return {event.step: event.state for event in self.events if isinstance(event, StepChanged)}

    @property
    def causes(self) -> list[CauseFound]:
        return [event for event in self.events if isinstance(event, CauseFound)]

    @property
    def refused(self) -> list[Found]:
        return [event for event in self.events if isinstance(event, Found) and event.level == "refuse"]

    def detail(self, step: str) -> str:
        """What a step said at its end."""
        return [event.detail for event in self.events if isinstance(event, StepChanged) and event.step == step][-1]

    def __str__(self) -> str:
        """For the message of a failed assertion."""
        steps = [f"{e.step} {e.state} {e.detail}" for e in self.events if isinstance(e, StepChanged)]
        return "\n".join([f"code {self.end.code}: {self.end.text}", *steps, *(cause.text for cause in self.causes)])


@dataclass(frozen=True, slots=True)
class VllmBox:
    machine: Machine
    profile: Profile
    folder: Path
    runs: list[Ran] = field(default_factory=list)

    def redeploy(self, profile: Profile | None = None, *, script: str = "redeploy", fix: bool = False) -> Ran:
        """One run on the node, as root."""
        return asyncio.run(self._redeploy(profile or self.profile, script, fix))

    async def _redeploy(self, profile: Profile, script: str, fix: bool) -> Ran:
        events: list[Event] = []
        with open_store(self.folder / "relaunch.db") as store:
            async with connect(self.machine.target()) as node:
                engine = Engine(node, profile, store)
                engine.subscribe(events.append)
                end = await engine.run(
                    load_script(script), RunOptions(confirm=agree, fix=fix, evidence=self.folder / "evidence")
                )
        self.runs.append(Ran(end, tuple(events)))
        return self.runs[-1]

    def journal(self, invocation: str) -> bytes:
        """What the server of one start wrote, as journald kept it."""
        line = f"journalctl --no-pager -q -o cat _SYSTEMD_INVOCATION_ID={invocation}"
        return self.machine.ssh(line).encode()

    def shown(self, *names: str) -> dict[str, str]:
        """Properties of our unit, of systemd itself."""
        said = self.machine.ssh(f"systemctl show -p {','.join(names)} {self.profile.service.unit}")
        return dict(line.split("=", 1) for line in said.splitlines() if "=" in line)

    def remember_backend(self, dtypes: list[str]) -> None:
        """Put down as remembered what the attention backend of this node takes.

        Relaunch asks the installed TRITON_MLA, which serves dense MLA on every GPU of compute capability 12.0. On a CPU
        another backend serves, and whether the stand-in GPUs have FP8 is nothing that TRITON_MLA's answer tells.
        """
        asyncio.run(self._remember(json.dumps({"venv": self.profile.vllm.venv, "dtypes": dtypes})))

    def forget_backend(self) -> None:
        self.machine.ssh("rm -rf /var/lib/relaunch/probe")

    async def _remember(self, text: str) -> None:
        async with connect(self.machine.target()) as node:
            facts = await read_facts(node, redeploy_question(self.profile))
            path = cache_file(facts, self.profile)
        assert path is not None, "the facts do not show the environment's vLLM"
        self.machine.put(path, text.encode(), 0o644)


def cpu_backend_dtypes(venv: Path) -> list[str]:
    """What CPU_MLA says of itself in the installed vLLM's source."""
    source = next(venv.glob("lib/python3*/site-packages/vllm/v1/attention/backends/mla/cpu_mla.py"))
    found = re.search(r"supported_kv_cache_dtypes[^=]*= (\[[^\]]*\])", source.read_text())
    assert found is not None
    return [str(dtype) for dtype in json.loads(found[1])]


def tiny_model(venv: Path, folder: Path) -> Path:
    """The tiny Kimi, made by the environment's own torch."""
    maker = Path(__file__).with_name("tiny_kimi.py")
    subprocess.run([str(venv / "bin/python"), str(maker), str(folder)], check=True, capture_output=True, timeout=300)
    return folder


@contextmanager
def hub_of(machine: Machine, model: Path) -> Iterator[str]:
    """The model hub, on this machine's side of the lab's network; in a thread of its own, for runs on many loops."""
    address = machine.ssh("echo ${SSH_CLIENT%% *}").strip()
    repo = load_profile(PROFILE).model.repo
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="hub", daemon=True)
    thread.start()
    with socket.create_server((address, 0)) as listening:
        endpoint, close = asyncio.run_coroutine_threadsafe(start_hub({repo: model}, sock=listening), loop).result(60)
        try:
            yield f"http://{address}:{endpoint.rsplit(':', 1)[1]}"
        finally:
            asyncio.run_coroutine_threadsafe(_closed(close), loop).result(60)
            loop.call_soon_threadsafe(loop.stop)
            thread.join(60)
            loop.close()


async def _closed(close: Callable[[], Awaitable[None]]) -> None:
    await close()


def furnished(machine: Machine, endpoint: str, folder: Path) -> VllmBox:
    """The stand-in GPUs, and the profile with the hub's address."""
    programs = folder / "programs"
    programs.mkdir()
    for source in (_STANDINS / "standins" / "nvidia_smi.py", _STANDINS / "vllm" / "standin" / "gpu_state.py"):
        shutil.copy(source, programs)
    machine.put_tree(programs, "/usr/local/lib/practice")
    smi = b'#!/bin/sh\nexec python3 -I -S /usr/local/lib/practice/nvidia_smi.py "$@"\n'
    machine.put("/usr/local/bin/nvidia-smi", smi)
    machine.ssh(f"mkdir -p {PRACTICE}")
    profile = load_profile(PROFILE)
    return VllmBox(
        machine, profile.model_copy(update={"model": profile.model.model_copy(update={"endpoint": endpoint})}), folder
    )
