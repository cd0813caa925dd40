"""Real nodes: systemd as PID 1 and OpenSSH, booted from namespaces on this machine by `node.sh`.

Fixtures for every test in this folder (they skip, with the reason, where such nodes cannot be):

    real_node          SshNode, logged in to n1 as root           real_node_ops   as ops, who has sudo without a password
    machine            n1 itself: a `Machine`, booted once for all tests; leave it as healthy as it was
    fault_machine      n2, for tests that break something; healed after each test, booted again when it does not answer
    lab                the `Lab`: `lab.boot("n3")` and `lab.halt("n3")` for a node of one's own
    connect_to         `async with connect_to(machine, user="root", **options) as node`

`machine.target(user)` is the `Target`, `machine.ssh("…")` runs a shell line with OpenSSH's own client, `machine.put(path,
data, mode)` and `machine.put_tree(folder, path)` place files on it, stand-ins in /usr/local or /opt for instance. Faults:
`machine.cut()`, `mute()`, `refuse()`, `freeze()` are context managers that heal; `machine.reset()` is a power cycle.

The lab itself, also for programs that are no tests: `tests.node.lab`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from console.node.ssh import SshNode, connect
from tests.node.lab import Lab, Machine, NoLab, open_lab

__all__ = ["ConnectTo", "Lab", "Machine"]


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    try:
        with open_lab() as made:
            yield made
    except NoLab as reason:
        pytest.skip(f"no real nodes here: {reason}")


@pytest.fixture(scope="session")
def machine(lab: Lab) -> Machine:
    return lab.boot("n1")


@pytest.fixture(scope="session")
def _fault_machine(lab: Lab) -> dict[str, Machine]:
    return {"n2": lab.boot("n2")}


@pytest.fixture
def fault_machine(lab: Lab, _fault_machine: dict[str, Machine]) -> Iterator[Machine]:
    yield _fault_machine["n2"]
    if _fault_machine["n2"].ssh("echo fine", check=False) != "fine\n":
        lab.halt("n2")
        _fault_machine["n2"] = lab.boot("n2")


ConnectTo = Callable[..., AbstractAsyncContextManager[SshNode]]


@pytest.fixture
def connect_to() -> ConnectTo:
    def to(machine: Machine, user: str = "root", **options: Any) -> AbstractAsyncContextManager[SshNode]:
        return connect(machine.target(user), **options)

    return to


@pytest.fixture
async def real_node(machine: Machine) -> AsyncIterator[SshNode]:
    async with connect(machine.target()) as node:
        yield node


@pytest.fixture
async def real_node_ops(machine: Machine) -> AsyncIterator[SshNode]:
    async with connect(machine.target("ops")) as node:
        yield node
