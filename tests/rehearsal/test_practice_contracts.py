"""The practice node is a node: the contracts that a real machine with OpenSSH and systemd passes too (tests/node)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from console.node.base import capture
from console.node.ssh import SshNode
from console.rehearsal.practice import Practice
from tests.contract import journal_contract, node_contract, systemd_contract
from tests.contract.units import Check, units_of
from tests.rehearsal.conftest import log_in

BESIDE_ROOT = {node_contract.becomes_root, node_contract.streams_as_root_and_ends_the_helper}
"""They ask for uid 0, which the stand-in sudo cannot give."""


@pytest.fixture
async def node(shared_practice: Practice) -> AsyncIterator[SshNode]:
    async with log_in(shared_practice) as node:
        yield node


@pytest.mark.parametrize("check", [*node_contract.CHECKS, *node_contract.SUDO_CHECKS], ids=node_contract.name)
async def test_node_contract(check: node_contract.Check, node: SshNode) -> None:
    if check in BESIDE_ROOT and await capture(node, ("id", "-u")) != "0\n":
        pytest.skip("the practice runs under an account that is not root")
    async with node_contract.bench_of(node) as bench:
        await check(bench)


async def test_read_only(shared_practice: Practice, tmp_path: Path) -> None:
    quiet = tmp_path / "quiet"
    quiet.mkdir()
    async with log_in(shared_practice, read_only=True) as node:
        await node_contract.read_only_denies_what_mutates(node, str(quiet))


@pytest.mark.parametrize("check", [*systemd_contract.CHECKS, *journal_contract.CHECKS], ids=node_contract.name)
async def test_systemd_contract(check: Check, shared_practice: Practice, node: SshNode) -> None:
    async with units_of(node, f"{shared_practice.root}/sys/fs/cgroup") as units:
        await check(units)
