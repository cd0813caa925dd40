"""A practice node for each test that asks for one, in a fresh state folder; afterwards none of its processes is left.

practice         a running node (`Practice`), its old service starting; the stand-ins do not pause
practice_node    an `SshNode` on it
new_practice     `async with new_practice(faults=("drop",), …) as practice`, for a node of one's own
log_in           `async with log_in(practice) as node`
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from console.node.ssh import SshNode, connect
from console.node.target import Target
from console.rehearsal import practice as rehearsal
from console.rehearsal.practice import Practice
from console.rehearsal.processes import descendants, start_ticks

HURRIED = {"load": 0.0, "tokens": 0.0, "install": 0.0, "hub": 0.0}
"""No pauses in the stand-ins."""

NewPractice = Callable[..., AbstractAsyncContextManager[Practice]]


def target_of(practice: Practice) -> Target:
    return Target(
        name="rehearsal",
        host=practice.host,
        port=practice.port,
        user=practice.user,
        identity_files=(str(practice.client_key),),
        known_hosts=(),
        host_key=practice.host_key.split(" ", 1)[1],
    )


def log_in(practice: Practice, **options: Any) -> AbstractAsyncContextManager[SshNode]:
    return connect(target_of(practice), **options)


def left_of(started: dict[int, int | None]) -> list[int]:
    """Those of the processes that still are the same and alive."""
    return [pid for pid, ticks in started.items() if ticks is not None and start_ticks(pid) == ticks]


@asynccontextmanager
async def practising(state: Path, **options: Any) -> AsyncIterator[Practice]:
    """A practice node in `state`; at the end it is stopped, and nothing of it lives on."""
    practice = await rehearsal.ensure(state, pace=HURRIED, **options)
    try:
        yield practice
    finally:
        now = rehearsal.status(state)
        family = {} if now is None else {pid: start_ticks(pid) for pid in (now.pid, *descendants(now.pid))}
        await rehearsal.stop(state)
        left = left_of(family)
        log = (state / "server.log").read_text()
    assert left == []
    assert log == "", "the practice server complained"


@pytest.fixture
def new_practice(tmp_path: Path) -> NewPractice:
    def make(name: str = "state", **options: Any) -> AbstractAsyncContextManager[Practice]:
        return practising(tmp_path / name, **options)

    return make


@pytest.fixture
async def practice(new_practice: NewPractice) -> AsyncIterator[Practice]:
    async with new_practice() as running:
        yield running


@pytest.fixture
async def practice_node(practice: Practice) -> AsyncIterator[SshNode]:
    async with log_in(practice) as node:
        yield node
