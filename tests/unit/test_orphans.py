"""Orphans are ended by identity, and after a word: the pid with its start time, and nothing that merely has the pid."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from console.deploy.steps.drain import Drain
from console.deploy.steps.stop import Stop
from console.errors import NotReady
from console.node.agent.processes import start_ticks
from console.node.facts import Facts, Paths
from console.node.gpudata import GpuProcess, blank_gpu
from console.node.leftovers import Left, Process, end_processes
from console.node.local import LocalNode
from console.node.systemd import parse_state
from console.profile.load import find_profile

DEAF = "import signal,sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); signal.pause()"


def some_facts(tmp_path: Path) -> Facts:
    values: dict[str, Any] = {field.name: None for field in dataclasses.fields(Facts)}
    paths = Paths(home="/root", units="/u", cgroup=str(tmp_path), shm=str(tmp_path), state=str(tmp_path))
    return Facts(**(values | {"paths": paths, "files": {}, "expanded": {}}))


async def started(*argv: str) -> asyncio.subprocess.Process:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", *argv, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    await process.stdout.readline()
    return process


async def test_exactly_these_processes_end_the_deaf_one_too(tmp_path: Path) -> None:
    deaf = await started(DEAF)
    other = await started(DEAF)
    uid = os.getuid()
    ticks = start_ticks(deaf.pid)
    assert ticks is not None
    reused = Process(other.pid, (start_ticks(other.pid) or 0) - 1, uid, "somebody else who has the pid by now")
    try:
        left = await end_processes(
            LocalNode(), some_facts(tmp_path), (Process(deaf.pid, ticks, uid, "deaf"), reused), wait=0.3
        )
        assert left == ()
        assert await deaf.wait() == -signal.SIGKILL
        assert other.returncode is None
    finally:
        other.kill()
        await other.wait()


@pytest.mark.parametrize("agreed", [True, False])
@pytest.mark.parametrize("step", ["stop", "drain"])
async def test_what_a_unit_left_is_ended_only_after_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, agreed: bool
) -> None:
    orphan = await started("import signal; print('here', flush=True); signal.pause()")
    ticks = start_ticks(orphan.pid)
    asked: list[str] = []
    told: list[Any] = []

    async def confirm(question: str, word: str) -> bool:
        asked.append(f"{word}: {question}")
        return agreed

    async def down(node: object, names: tuple[str, ...]) -> dict[str, Any]:
        return {name: parse_state(name, {"ActiveState": "inactive"}) for name in names}

    monkeypatch.setattr("console.deploy.steps.drain.systemd.states", down)
    profile = find_profile("rehearsal")
    ctx: Any = types.SimpleNamespace(
        node=LocalNode(), facts=some_facts(tmp_path), profile=profile, confirm=confirm, emit=told.append, found={}
    )
    left = Left((Process(orphan.pid, ticks or 0, os.getuid(), "orphan"),), (), (), (), 0.0)
    holder = (blank_gpu(3), GpuProcess(orphan.pid, 9 << 30, "me", "orphan", "vllm-glm5.service", ticks))
    try:
        if step == "stop":
            assert await Stop()._orphans_ended(ctx, ("vllm-glm5.service",), left) is agreed
        elif agreed:
            await Drain()._end(ctx, (holder,))
        else:
            with pytest.raises(NotReady, match=r"not agreed to end it.*GPU 3: 9.0 GiB held by pid"):
                await Drain()._end(ctx, (holder,))
        assert f"pid {orphan.pid}" in asked[0]
        assert asked[0].startswith("orphans: ")
        assert bool(told) is agreed
        assert orphan.returncode is None or agreed
        if agreed:
            assert await orphan.wait() == -signal.SIGTERM
    finally:
        if orphan.returncode is None:
            orphan.kill()
            await orphan.wait()
