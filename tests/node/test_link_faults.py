"""What a link does when the network, the node or sshd misbehave: measured against OpenSSH on a real node."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager

import pytest

from console.errors import Refused, Unreachable
from console.node.base import Done, LinkState, Lost, Result, capture
from console.node.ssh import SshNode, Timing, connect

QUICK = Timing(
    connect=3, keepalive=1, keepalive_count=2, beat_first=0.1, beat_every=0.3, beat_limit=60, backoff_first=0.1,
    backoff_most=0.5, patience=30,
)  # fmt: skip
ONLY_HEARTBEAT = Timing(
    connect=3, keepalive=1000, beat_first=0, beat_every=0.3, beat_limit=1.5, backoff_first=0.1, backoff_most=0.5
)
CONSOLE = """
import asyncio, sys
from console.node.ssh import connect
from console.node.target import Target
async def main():
    host, key, known = sys.argv[1:]
    target = Target(name="n", host=host, user="root", identity_files=(key,), known_hosts=(known,))
    async with connect(target) as node, node.stream(("sh", "-c", "echo $$; exec sleep 1000")) as lines:
        async for line in lines:
            print(line.text, flush=True)
asyncio.run(main())
"""
UNTIL = 'until test -e "$0"; do sleep 0.05; done'


def down(state: LinkState) -> bool:
    return not state.up


@pytest.fixture
async def node(fault_machine) -> AsyncIterator[SshNode]:
    async with connect(fault_machine.target(), timing=QUICK) as node:
        yield node


@pytest.fixture
def folder(fault_machine) -> str:
    return fault_machine.ssh("mktemp -d").strip()


@contextmanager
def sshd_setting(machine, line: str, *, instead_of: str = "") -> Iterator[None]:
    """A line in the node's sshd_config while the context is open."""
    replace = f"sed -i '/{instead_of}/d' /etc/ssh/sshd_config &&" if instead_of else ""
    machine.ssh(
        f"cp /etc/ssh/sshd_config /root/kept && {replace} sed -i '1i {line}' /etc/ssh/sshd_config && systemctl reset-failed ssh; systemctl restart ssh"
    )
    try:
        yield
    finally:
        machine.ssh("mv /root/kept /etc/ssh/sshd_config && systemctl reset-failed ssh; systemctl restart ssh")


async def state_of(node: SshNode, *, when: Callable[[LinkState], bool]) -> LinkState:
    """The first link state of which `when` is true."""
    seen: asyncio.Queue[LinkState] = asyncio.Queue()
    node.on_link(seen.put_nowait)
    state = node.link()
    async with asyncio.timeout(60):
        while not when(state):
            state = await seen.get()
    return state


async def under_way(node: SshNode, folder: str) -> asyncio.Future[Result]:
    """A command that does not end by itself, and has begun."""
    running = asyncio.ensure_future(node.run(("sh", "-c", f"touch {folder}/started; exec sleep 1000"), timeout=60))
    assert await node.run(("sh", "-c", UNTIL, f"{folder}/started"), timeout=20) == Done(0, "", "")
    return running


async def test_a_command_that_is_cut_off_is_lost_and_runs_on(node: SshNode, fault_machine, folder: str) -> None:
    script = f"touch {folder}/started; sleep 4; touch {folder}/finished"
    running = asyncio.ensure_future(node.run(("sh", "-c", script), timeout=60))
    assert await node.run(("sh", "-c", UNTIL, f"{folder}/started"), timeout=20) == Done(0, "", "")
    with fault_machine.cut():
        answer = await running
        assert isinstance(answer, Lost)
        assert answer.sent
        assert not (await state_of(node, when=down)).up
    # the next call waits for the reconnect and goes on; nothing was replayed
    assert await node.run(("sh", "-c", UNTIL, f"{folder}/finished"), timeout=30) == Done(0, "", "")
    assert node.generation == 2
    assert await capture(node, ("ls", folder)) == "finished\nstarted\n"


async def test_a_short_cut_is_survived(node: SshNode, fault_machine) -> None:
    with fault_machine.cut():
        running = asyncio.ensure_future(node.run(("echo", "through"), timeout=30))
        await asyncio.sleep(1)  # shorter than the keep-alives allow; that nothing happens meanwhile is the point
    assert await running == Done(0, "through\n", "")
    assert node.generation == 1


async def test_a_call_while_the_link_is_down_is_bounded_and_was_not_sent(fault_machine) -> None:
    timing = Timing(connect=2, keepalive=0.5, keepalive_count=1, backoff_first=0.1, backoff_most=0.3, patience=1)
    async with connect(fault_machine.target(), timing=timing) as node:
        with fault_machine.cut():
            await state_of(node, when=down)
            answer = await node.run(("touch", "/tmp/never"), timeout=60)
            assert isinstance(answer, Lost)
            assert not answer.sent
            with pytest.raises(Unreachable, match="link is down"):
                await node.read("/etc/hostname")
    assert fault_machine.ssh("ls /tmp/never 2>&1 || true").startswith("ls: cannot access")


@pytest.mark.parametrize("fault", ["mute", "freeze"])
async def test_the_heartbeat_notices_what_keepalives_do_not(fault_machine, folder: str, fault: str) -> None:
    async with connect(fault_machine.target(), timing=ONLY_HEARTBEAT) as node:
        await state_of(node, when=lambda state: state.latency_ms is not None)
        running = await under_way(node, folder)
        with getattr(fault_machine, fault)():
            assert "did not answer" in (await state_of(node, when=down)).reason
            assert isinstance(await running, Lost)
        assert await node.run(("echo", "back"), timeout=60) == Done(0, "back\n", "")


async def test_a_reset_breaks_the_session_and_refuses_new_ones(node: SshNode, fault_machine, folder: str) -> None:
    running = await under_way(node, folder)
    with fault_machine.refuse():
        assert isinstance(await running, Lost)
        with pytest.raises(Unreachable, match="refused"):
            async with connect(fault_machine.target(), timing=QUICK):
                pass
    assert await node.run(("echo", "back"), timeout=60) == Done(0, "back\n", "")


async def test_a_power_cycle_is_come_through(node: SshNode, fault_machine) -> None:
    before = await node.read("/proc/sys/kernel/random/boot_id")
    resetting = asyncio.ensure_future(asyncio.to_thread(fault_machine.reset))
    await state_of(node, when=down)
    answer = await node.run(("cat", "/proc/sys/kernel/random/boot_id"), timeout=60)
    await resetting
    assert isinstance(answer, Done)
    assert answer.out != before.decode()
    assert node.generation == 2


async def test_a_followed_helper_tells_of_the_loss(node: SshNode, fault_machine) -> None:
    with pytest.raises(Unreachable, match="while following"):  # noqa: PT012
        async with node.stream(("sh", "-c", "echo first; exec sleep 1000")) as lines:
            assert (await anext(lines)).text == "first"
            with fault_machine.cut():
                await anext(lines)
    await node.up_again(1)
    async with node.stream(("echo", "again")) as lines:
        assert [line.text async for line in lines] == ["again"]


async def test_helpers_of_a_killed_console_end_on_the_node(node: SshNode, fault_machine) -> None:
    target = fault_machine.target()
    console = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CONSOLE, target.host, target.identity_files[0], target.known_hosts[0],
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    pid = (await console.stdout.readline()).decode().strip()
    console.kill()
    await console.wait()
    assert await node.run(("tail", "-s", "0.1", "--pid", pid, "-f", "/dev/null"), timeout=30, mutates=False) == Done(
        0, "", ""
    )


async def test_a_write_that_is_cut_off_leaves_the_old_content(node: SshNode, fault_machine, folder: str) -> None:
    await node.write(f"{folder}/file", b"old")
    writing = asyncio.ensure_future(node.write(f"{folder}/file", b"n" * 100_000_000))
    begun = 'until ls -A "$0" | grep -q relaunch; do sleep 0.01; done'
    assert await node.run(("sh", "-c", begun, folder), timeout=20) == Done(0, "", "")
    with fault_machine.cut(), pytest.raises(Unreachable, match="unknown"):
        await writing
    assert await node.read(f"{folder}/file") == b"old"


async def test_a_full_disk_leaves_the_old_content_and_nothing_else(fault_machine) -> None:
    fault_machine.ssh("mkdir -p /mnt/small && mount -t tmpfs -o size=64k,mode=777 tmpfs /mnt/small")
    try:
        for user, sudo in (("root", False), ("ops", True)):
            async with connect(fault_machine.target(user), timing=QUICK) as node:
                await node.write("/mnt/small/file", b"old", sudo=sudo)
                with pytest.raises(Refused, match="no room for"):
                    await node.write("/mnt/small/file", b"n" * 100_000, sudo=sudo)
                assert await node.read("/mnt/small/file", sudo=sudo) == b"old"
                assert await capture(node, ("ls", "-A", "/mnt/small")) == "file\n"
    finally:
        fault_machine.ssh("umount /mnt/small")


@pytest.mark.parametrize("sessions", [1, 2])
async def test_a_server_with_few_sessions_gets_one_command_after_another(fault_machine, sessions: int) -> None:
    with sshd_setting(fault_machine, f"MaxSessions {sessions}"):
        async with connect(fault_machine.target(), timing=QUICK) as node:
            answers = await asyncio.gather(*(node.run(("echo", str(n)), timeout=60) for n in range(12)))
            assert answers == [Done(0, f"{n}\n", "") for n in range(12)]
            await node.write("/tmp/few", b"x")
            assert await node.read("/tmp/few") == b"x"


async def test_commands_that_were_given_up_do_not_use_the_server_up(fault_machine) -> None:
    """sshd counts a session until its command ends, long after its channel has closed."""
    with sshd_setting(fault_machine, "MaxSessions 3"):
        async with connect(fault_machine.target(), timing=QUICK) as node:
            for _ in range(4):
                assert isinstance(await node.run(("sleep", "1000"), timeout=0.5), Lost)
            assert await node.run(("echo", "free"), timeout=60) == Done(0, "free\n", "")


async def test_a_command_nobody_waits_for_is_not_started_late(node: SshNode, fault_machine, folder: str) -> None:
    with fault_machine.freeze():
        answer = await node.run(("touch", f"{folder}/late"), timeout=0.5)
        assert isinstance(answer, Lost)
        assert not answer.sent
    assert await node.run(("ls", folder), timeout=60) == Done(0, "", "")


async def test_a_banner_in_another_encoding_ends_no_connection(fault_machine) -> None:
    fault_machine.put("/etc/ssh/banner", b"Acc\xe8s r\xe9serv\xe9\n")
    with sshd_setting(fault_machine, "Banner /etc/ssh/banner"):
        async with connect(fault_machine.target(), timing=QUICK) as node:
            assert await node.run(("echo", "in"), timeout=30) == Done(0, "in\n", "")


async def test_a_server_without_sftp_is_written_to_by_a_script(fault_machine, folder: str) -> None:
    with sshd_setting(fault_machine, "Subsystem sftp /bin/false", instead_of="^Subsystem.*"):
        async with connect(fault_machine.target(), timing=QUICK) as node:
            await node.write(f"{folder}/file", b"\0data\n", mode=0o600)
            assert await node.read(f"{folder}/file") == b"\0data\n"
            assert await capture(node, ("stat", "-c", "%a", f"{folder}/file")) == "600\n"


async def test_leaving_leaves_no_task_behind(fault_machine) -> None:
    before = asyncio.all_tasks()
    async with connect(fault_machine.target(), timing=QUICK) as node:
        running = asyncio.ensure_future(node.run(("sleep", "1000"), timeout=100))
        async with node.stream(("sleep", "1000")):
            await asyncio.sleep(0.2)  # the command and the heartbeat are under way
    assert isinstance(await running, Lost)
    assert asyncio.all_tasks() == before
