"""The assertions that the practice init passes, on a real systemd as PID 1: what keeps the rehearsal true."""

from __future__ import annotations

import pytest

from console.node.ssh import SshNode
from tests.contract import journal_contract, node_contract, systemd_contract
from tests.contract.units import Check, units_of


@pytest.mark.parametrize("check", [*systemd_contract.CHECKS, *journal_contract.CHECKS], ids=node_contract.name)
async def test_as_root(check: Check, real_node: SshNode) -> None:
    await _check(check, real_node)


async def _check(check: Check, node: SshNode) -> None:
    mounts = (await node.read("/proc/self/mounts")).decode().splitlines()
    tree = next((row.split()[1] for row in mounts if row.split()[2] == "cgroup2"), "/sys/fs/cgroup/systemd")
    async with units_of(node, tree) as units:
        await check(units)
