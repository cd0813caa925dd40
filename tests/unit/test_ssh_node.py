"""SshNode against an SSH server in the same loop: the Node contract, loss and reconnect, sessions, logins, read-only."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from console.errors import AuthenticationFailed, HostKeyRejected, Unreachable, UsageError
from console.node.base import Denied, Done, LinkState, Lost
from console.node.prompts import UnknownHost
from console.node.ssh import SshNode, Timing, connect
from console.text import Secret
from tests.contract import node_contract
from tests.contract.node_contract import Bench, Check
from tests.contract.sshd import Sshd, serving

QUICK = Timing(beat_first=0.05, beat_every=0.1, backoff_first=0.01, backoff_most=0.05, patience=10)


@pytest.fixture
async def sshd(tmp_path: Path) -> AsyncIterator[Sshd]:
    folder = tmp_path / "sshd"
    folder.mkdir()
    async with serving(folder) as running:
        yield running


@pytest.fixture
async def node(sshd: Sshd) -> AsyncIterator[SshNode]:
    async with connect(sshd.target(), timing=QUICK) as node:
        yield node


@pytest.fixture
def folder(tmp_path: Path) -> str:
    (tmp_path / "bench").mkdir()
    return str(tmp_path / "bench")


@pytest.mark.parametrize("check", node_contract.CHECKS, ids=node_contract.name)
async def test_contract(check: Check, node: SshNode, folder: str) -> None:
    await check(Bench(node, folder))


async def test_read_only(sshd: Sshd, folder: str) -> None:
    async with connect(sshd.target(), timing=QUICK, read_only=True) as node:
        await node_contract.read_only_denies_what_mutates(node, folder)
    assert not [line for line in sshd.commands if "touch" in line]


async def exists(path: str) -> None:
    async with asyncio.timeout(20):
        while not os.path.exists(path):  # noqa: ASYNC110, ASYNC240 -- a process makes it, which tells nobody
            await asyncio.sleep(0.01)


async def test_a_lost_command_may_have_run_and_is_not_replayed(sshd: Sshd, node: SshNode, folder: str) -> None:
    script = f"echo once >>{folder}/times; sleep 0.3; echo done >>{folder}/times; touch {folder}/end"
    running = asyncio.ensure_future(node.run(("sh", "-c", script), timeout=60))
    await exists(f"{folder}/times")
    sshd.drop()
    answer = await running
    assert isinstance(answer, Lost)
    assert answer.sent
    await exists(f"{folder}/end")  # it ran on without us
    assert await node.run(("cat", f"{folder}/times"), timeout=30) == Done(0, "once\ndone\n", "")
    assert (node.generation, sshd.logins) == (2, 2)


async def test_calls_right_after_a_loss_wait_and_go_on(sshd: Sshd, node: SshNode) -> None:
    for _ in range(5):
        sshd.drop()
        answers = await asyncio.gather(
            node.run(("echo", "a"), timeout=30), node.run(("echo", "b"), timeout=30), node.read("/proc/uptime")
        )
        assert answers[:2] == [Done(0, "a\n", ""), Done(0, "b\n", "")] or any(
            isinstance(answer, Lost) for answer in answers[:2]
        )


async def test_watchers_see_the_link_go_and_come(sshd: Sshd, node: SshNode) -> None:
    seen: asyncio.Queue[LinkState] = asyncio.Queue()
    node.on_link(seen.put_nowait)
    sshd.drop()
    await node.up_again(1)
    states = [seen.get_nowait().up for _ in range(seen.qsize())]
    assert states[0] is False
    assert states[-1] is True


async def test_the_heartbeat_measures_the_way_to_a_process_and_back(node: SshNode) -> None:
    seen: asyncio.Queue[LinkState] = asyncio.Queue()
    node.on_link(seen.put_nowait)
    while (state := await seen.get()).latency_ms is None:
        pass
    assert state.up
    assert state.latency_ms > 0


async def test_a_session_without_exit_status_is_lost(sshd: Sshd, node: SshNode) -> None:
    sshd.says_no_exit = True
    answer = await node.run(("echo", "said"), timeout=30)
    assert isinstance(answer, Lost)
    assert answer.sent


@pytest.mark.parametrize("sessions", [1, 2, 3])
async def test_few_sessions_make_commands_wait_their_turn(sshd: Sshd, sessions: int) -> None:
    sshd.max_sessions = sessions
    async with connect(sshd.target(), timing=QUICK) as node:
        answers = await asyncio.gather(*(node.run(("echo", str(n)), timeout=60) for n in range(20)))
    assert answers == [Done(0, f"{n}\n", "") for n in range(20)]


async def test_no_session_at_all_is_denied(sshd: Sshd) -> None:
    sshd.max_sessions = 0
    async with connect(sshd.target(), timing=QUICK) as node:
        answer = await node.run(("echo", "never"), timeout=30)
    assert isinstance(answer, Denied)
    assert "no session" in answer.reason


async def test_streams_leave_room_for_commands(sshd: Sshd, node: SshNode) -> None:
    async with asyncio.TaskGroup() as tasks, asyncio.timeout(60):
        held = [asyncio.Event() for _ in range(8)]
        leave = asyncio.Event()

        async def hold(open_now: asyncio.Event) -> None:
            async with node.stream(("sh", "-c", "echo open; exec sleep 1000")) as lines:
                await anext(lines)
                open_now.set()
                await leave.wait()

        for event in held:
            tasks.create_task(hold(event))
        await asyncio.gather(*(event.wait() for event in held[:4]))
        assert await node.run(("echo", "room"), timeout=30) == Done(0, "room\n", "")
        leave.set()
        await asyncio.gather(*(event.wait() for event in held))  # the other four had their turn


async def test_cancelling_a_run_lets_go_of_its_session(sshd: Sshd, node: SshNode) -> None:
    for _ in range(15):  # more than there are sessions
        running = asyncio.ensure_future(node.run(("sleep", "1000"), timeout=100, mutates=False))
        await asyncio.sleep(0.02)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert await node.run(("echo", "free"), timeout=30) == Done(0, "free\n", "")


async def test_commands_that_were_given_up_do_not_use_the_server_up(sshd: Sshd) -> None:
    """sshd counts a session until its command ends, long after its channel has closed."""
    sshd.max_sessions = 3
    async with connect(sshd.target(), timing=QUICK) as node:
        for _ in range(8):
            assert isinstance(await node.run(("sleep", "1000"), timeout=0.3), Lost)
        assert await node.run(("echo", "free"), timeout=30) == Done(0, "free\n", "")


async def test_leaving_ends_every_task(sshd: Sshd) -> None:
    before = asyncio.all_tasks()
    async with connect(sshd.target(), timing=QUICK) as node:
        running = asyncio.ensure_future(node.run(("sleep", "1000"), timeout=100))
        async with node.stream(("sleep", "1000")):
            await asyncio.sleep(0.1)
    assert isinstance(await running, Lost)
    left = {task for task in asyncio.all_tasks() - before if "node/ssh" in repr(task)}
    assert left == set()


class Person:
    def __init__(self, *passwords: str, accepts: bool = False) -> None:
        self.passwords = list(passwords)
        self.accepts = accepts
        self.asked: list[str] = []

    async def accept_host(self, question: UnknownHost) -> bool:
        self.asked.append(question.fingerprint)
        return self.accepts

    async def password(self, question: str) -> Secret | None:
        self.asked.append(question)
        return Secret(self.passwords.pop(0)) if self.passwords else None


async def test_a_login_password_is_asked_and_not_again_after_a_loss(sshd: Sshd) -> None:
    sshd.passwords = {"typist": "s3cret"}
    person = Person("wrong", "s3cret")
    async with connect(sshd.target(user="typist"), timing=QUICK, prompts=person) as node:
        assert len(person.asked) == 2
        sshd.drop()
        await node.up_again(1)
        assert await node.run(("echo", "in"), timeout=30) == Done(0, "in\n", "")
    assert len(person.asked) == 2


async def test_without_anybody_to_ask_a_password_login_is_refused(sshd: Sshd) -> None:
    sshd.passwords = {"typist": "s3cret"}
    with pytest.raises(AuthenticationFailed, match=r"typist@127\.0\.0\.1 was refused") as caught:
        async with connect(sshd.target(user="typist"), timing=QUICK):
            pass
    assert "password" in caught.value.message
    assert "ssh-add" in caught.value.remedy


async def test_a_server_that_asks_for_no_authentication_is_not_used(sshd: Sshd) -> None:
    sshd.lets_anybody_in = True
    with pytest.raises(AuthenticationFailed):
        async with connect(sshd.target(), timing=QUICK, prompts=Person("s3cret")):
            pass


async def test_a_host_key_that_changes_between_two_connections_ends_the_session(sshd: Sshd) -> None:
    known = sshd.folder / "known_hosts"
    async with connect(sshd.target(), timing=QUICK, prompts=Person(accepts=True)) as node:
        other = (sshd.folder / "client.pub").read_text()
        known.write_text(f"[127.0.0.1]:{sshd.port} {other}")
        sshd.drop()
        with pytest.raises(HostKeyRejected, match="CHANGED"):
            await node.up_again(1)
        answer = await node.run(("echo", "never"), timeout=30)
        assert isinstance(answer, Lost)
        assert not answer.sent
        with pytest.raises(HostKeyRejected):
            await node.read("/etc/hostname")


async def test_a_port_where_nothing_listens_says_so(sshd: Sshd, unused_tcp_port: int) -> None:
    with pytest.raises(Unreachable, match="refused"):
        async with connect(sshd.target(port=unused_tcp_port, known_hosts=()), timing=QUICK):
            pass


async def test_a_port_that_never_speaks_ends_in_a_time_out(sshd: Sshd) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(Unreachable, match="no answer in time"):
            async with connect(sshd.target(port=port), timing=Timing(connect=0.3)):
                pass


async def test_a_name_that_does_not_resolve_says_so(sshd: Sshd) -> None:
    with pytest.raises(Unreachable, match="cannot be resolved"):
        async with connect(sshd.target(host="no-such-host.invalid"), timing=QUICK):
            pass


async def test_a_key_file_that_is_not_there_is_a_usage_error(sshd: Sshd) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        async with connect(sshd.target(identity_files=("/nowhere/key",)), timing=QUICK):
            pass


async def test_command_lines_reach_no_log(sshd: Sshd, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        async with connect(sshd.target(), timing=QUICK) as node:
            await node.run(("echo", "sentinel-4711"), input=b"sentinel-4712", timeout=30)
    assert "sentinel" not in caplog.text
