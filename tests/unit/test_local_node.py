"""LocalNode keeps the same contract as a node over SSH."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from console.errors import Refused
from console.node.base import Denied
from console.node.local import LocalNode
from console.node.script import ask
from tests.contract import node_contract
from tests.contract.node_contract import Bench, Check

ALL = [*node_contract.CHECKS, *(node_contract.SUDO_CHECKS if os.geteuid() == 0 else ())]


@pytest.mark.parametrize("check", ALL, ids=node_contract.name)
async def test_contract(check: Check, tmp_path: Path) -> None:
    await check(Bench(LocalNode(), str(tmp_path)))


async def test_read_only(tmp_path: Path) -> None:
    await node_contract.read_only_denies_what_mutates(LocalNode(read_only=True), str(tmp_path))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize(
    ("source", "where"),
    [
        ("open('/dev/full', 'w').write('x' * 100_000)", "what the overlay script writes"),
        ("raise OSError(122, 'Disk quota exceeded', '/srv/models')", "/srv/models"),
    ],
)
async def test_a_script_that_meets_a_full_disk_is_refused(source: str, where: str) -> None:
    with pytest.raises(Refused, match=f"no room for {where}"):
        await ask(LocalNode(), "overlay", source, {})


@pytest.mark.skipif(os.geteuid() == 0, reason="root needs no sudo")
async def test_sudo_never_is_obeyed() -> None:
    assert isinstance(await LocalNode(sudo="never").run(("id",), timeout=30, sudo=True), Denied)
