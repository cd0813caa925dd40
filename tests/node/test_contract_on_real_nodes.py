"""The Node contract over OpenSSH on a real systemd node: as root, as a sudo user, and with a sudo password."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from console.node.base import Denied, Done
from console.node.prompts import UnknownHost
from console.node.ssh import SshNode, connect
from console.text import Secret
from tests.contract import node_contract
from tests.contract.node_contract import Bench, Check, bench_of


class Answers:
    """A person at the keyboard who gives one password after another."""

    def __init__(self, *passwords: str) -> None:
        self.left = list(passwords)
        self.asked: list[str] = []

    async def accept_host(self, question: UnknownHost) -> bool:
        return False

    async def password(self, question: str) -> Secret | None:
        self.asked.append(question)
        return Secret(self.left.pop(0)) if self.left else None


@pytest.fixture
async def root_bench(real_node: SshNode) -> AsyncIterator[Bench]:
    async with bench_of(real_node) as bench:
        yield bench


@pytest.fixture
async def ops_bench(real_node_ops: SshNode) -> AsyncIterator[Bench]:
    async with bench_of(real_node_ops) as bench:
        yield bench


@pytest.fixture
async def pat_bench(machine) -> AsyncIterator[Bench]:
    prompts = Answers("correct horse")
    async with connect(machine.target("pat"), prompts=prompts) as node, bench_of(node) as bench:
        yield bench
    assert len(prompts.asked) <= 1


@pytest.mark.parametrize("check", [*node_contract.CHECKS, *node_contract.SUDO_CHECKS], ids=node_contract.name)
async def test_as_root(check: Check, root_bench: Bench) -> None:
    await check(root_bench)


@pytest.mark.parametrize("check", [*node_contract.CHECKS, *node_contract.SUDO_CHECKS], ids=node_contract.name)
async def test_as_a_user_with_sudo(check: Check, ops_bench: Bench) -> None:
    await check(ops_bench)


@pytest.mark.parametrize("check", node_contract.SUDO_CHECKS, ids=node_contract.name)
async def test_with_a_sudo_password(check: Check, pat_bench: Bench) -> None:
    await check(pat_bench)


async def test_a_sudo_password_stands_in_no_argv(machine) -> None:
    async with connect(machine.target("pat"), prompts=Answers("correct horse")) as node:
        shown = await node.run(("sh", "-c", "cat /proc/[0-9]*/cmdline /proc/self/environ"), timeout=30, sudo=True)
        assert "correct horse" not in str(shown)


async def test_a_wrong_sudo_password_is_asked_for_once_more(machine) -> None:
    prompts = Answers("wrong", "correct horse")
    async with connect(machine.target("pat"), prompts=prompts) as node:
        assert await node.run(("id", "-u"), timeout=30, sudo=True) == Done(0, "0\n", "")
    assert len(prompts.asked) == 2


async def test_two_wrong_sudo_passwords_end_the_asking(machine) -> None:
    prompts = Answers("wrong", "wrong too", "correct horse")
    async with connect(machine.target("pat"), prompts=prompts) as node:
        for _ in range(2):
            answer = await node.run(("id", "-u"), timeout=30, sudo=True)
            assert isinstance(answer, Denied)
            assert "neither of two passwords" in answer.reason
    assert len(prompts.asked) == 2


async def test_nobody_to_ask_for_a_sudo_password_is_told(machine) -> None:
    async with connect(machine.target("pat")) as node:
        answer = await node.run(("id", "-u"), timeout=30, sudo=True)
    assert isinstance(answer, Denied)
    assert "nobody to ask" in answer.reason


@pytest.mark.parametrize("user", ["root", "ops"])
async def test_read_only(machine, user: str) -> None:
    machine.ssh("rm -rf /tmp/quiet && mkdir /tmp/quiet && chmod 777 /tmp/quiet")
    async with connect(machine.target(user), read_only=True) as node:
        await node_contract.read_only_denies_what_mutates(node, "/tmp/quiet")
