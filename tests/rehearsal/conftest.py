"""A practice node for each test that asks for one, in a fresh state folder; afterwards none of its processes is left.

practice         a running node (`Practice`), its old service starting; the stand-ins do not pause
practice_node    an `SshNode` on it
shared_practice  one for all tests of a file, whose old service has been stopped; leave it as it was
new_practice     `async with new_practice(faults=("drop",), …) as practice`, for a node of one's own
log_in           `async with log_in(practice) as node`
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from console.node.ssh import SshNode, connect
from console.node.target import Target
from console.rehearsal import practice as rehearsal
from console.rehearsal.practice import Practice
from console.rehearsal.processes import descendants, start_ticks
from console.rehearsal.seed import OLD_UNIT

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
        left, log = await end(state)
    assert left == []
    assert log == "", "the practice server complained"


async def end(state: Path) -> tuple[list[int], str]:
    """Stop the node of `state`: which of its processes live on, and what its server complained of."""
    family = family_of(state)
    await rehearsal.stop(state)
    return left_of(family), (state / "server.log").read_text()


def family_of(state: Path) -> dict[int, int | None]:
    """The server of `state` and every process below it, each with its start time."""
    now = rehearsal.status(state)
    return {} if now is None else {pid: start_ticks(pid) for pid in (now.pid, *descendants(now.pid))}


@pytest.fixture
def new_practice(tmp_path: Path) -> NewPractice:
    def make(name: str = "state", **options: Any) -> AbstractAsyncContextManager[Practice]:
        return practising(tmp_path / name, **options)

    return make


@pytest.fixture
async def practice(new_practice: NewPractice) -> AsyncIterator[Practice]:
    async with new_practice() as running:
        yield running


@pytest.fixture(scope="module")
def shared_practice(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Practice]:
    state = tmp_path_factory.mktemp("shared") / "state"

    async def begin() -> Practice:
        practice = await rehearsal.ensure(state, pace=HURRIED)
        async with log_in(practice) as node:
            await node.run(("systemctl", "disable", "--now", OLD_UNIT), timeout=60)
        return practice

    practice = asyncio.run(begin())
    try:
        yield practice
    finally:
        assert asyncio.run(end(state)) == ([], "")


@pytest.fixture
async def practice_node(practice: Practice) -> AsyncIterator[SshNode]:
    async with log_in(practice) as node:
        yield node
