"""Orphans are ended by identity: the pid with its start time, and nothing that merely has the pid."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import sys
from pathlib import Path
from typing import Any

from console.node.agent.processes import start_ticks
from console.node.facts import Facts, Paths
from console.node.leftovers import Process, end_processes
from console.node.local import LocalNode

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
