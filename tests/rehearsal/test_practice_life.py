"""How a practice node comes, stays and goes: one server for two consoles, outliving a killed one, idle end, reset."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import asyncssh
import pytest

from console.errors import CommandFailed, UsageError
from console.node.base import Done, capture
from console.node.facts import Question, read_facts
from console.rehearsal import practice as rehearsal
from console.rehearsal.practice import Practice
from console.rehearsal.processes import start_ticks
from console.rehearsal.seed import OLD_PORT, OLD_UNIT
from tests.rehearsal.conftest import HURRIED, NewPractice, end, family_of, left_of, log_in


async def test_two_consoles_share_one_server(new_practice: NewPractice, tmp_path: Path) -> None:
    async with new_practice() as practice:
        again, third = await asyncio.gather(
            rehearsal.ensure(tmp_path / "state"), rehearsal.ensure(tmp_path / "state", faults=("drop:ready",))
        )
        assert again.pid == third.pid == practice.pid
        assert (again.port, again.host_key) == (practice.port, practice.host_key)
        assert rehearsal.status(tmp_path / "state") is not None


async def test_two_consoles_that_start_at_once_start_one_server(tmp_path: Path) -> None:
    try:
        both = await asyncio.gather(*(rehearsal.ensure(tmp_path / "state", pace=HURRIED) for _ in range(2)))
        assert both[0].pid == both[1].pid
    finally:
        assert await end(tmp_path / "state") == ([], "")


async def test_it_outlives_a_console_that_is_killed(tmp_path: Path) -> None:
    program = (
        "import asyncio,sys,pathlib\n"
        "from console.rehearsal import practice\n"
        f"print(asyncio.run(practice.ensure(pathlib.Path(sys.argv[1]), pace={HURRIED!r})).pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    console = subprocess.Popen(  # noqa: ASYNC220 - it is waited for in a thread
        (sys.executable, "-c", program, str(tmp_path / "state")),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    with console:
        assert console.stdout is not None
        pid = int(await asyncio.to_thread(console.stdout.readline))
        os.killpg(console.pid, signal.SIGKILL)
    try:
        practice = await rehearsal.ensure(tmp_path / "state")
        assert practice.pid == pid
        async with log_in(practice) as node:
            assert await capture(node, ("echo", "here")) == "here\n"
    finally:
        assert await end(tmp_path / "state") == ([], "")


async def test_it_ends_by_itself_when_nobody_is_there(tmp_path: Path) -> None:
    state = tmp_path / "state"
    practice = await rehearsal.ensure(state, pace=HURRIED, idle_seconds=2)
    async with log_in(practice) as node:
        job = ("systemd-run", "--quiet", "--collect", "--unit=relaunch-some-job.service", "--", "sleep", "4")
        assert isinstance(await node.run(job, timeout=30), Done)
        family = family_of(state)
    async with asyncio.timeout(60):
        await asyncio.to_thread(_wait_for, practice.pid)
    journal = (practice.root / "var/log/journal/practice.jsonl").read_text()
    assert "relaunch-some-job.service: Deactivated successfully." in journal, "the job was not waited for"
    assert left_of(family) == []
    assert rehearsal.status(state) is None
    assert (state / "server.log").read_text() == ""


async def test_a_killed_server_takes_its_units_along_and_is_started_again(tmp_path: Path) -> None:
    state = tmp_path / "state"
    practice = await rehearsal.ensure(state, pace=HURRIED)
    async with log_in(practice) as node:
        await node.run(("systemctl", "is-active", OLD_UNIT), timeout=30)  # answers when the node has booted
        family = family_of(state)
    os.kill(practice.pid, signal.SIGKILL)
    await asyncio.to_thread(_wait_for, practice.pid)
    assert rehearsal.status(state) is None
    again = await rehearsal.ensure(state)
    try:
        assert again.pid != practice.pid
        async with asyncio.timeout(30):
            while left_of(family):  # noqa: ASYNC110 - their parent is gone, so nobody is told of their end
                await asyncio.sleep(0.05)
        async with log_in(again) as node:
            assert await capture(node, ("systemctl", "is-enabled", OLD_UNIT)) == "enabled\n"
    finally:
        assert await end(state) == ([], "")


async def test_what_was_done_stays_until_it_is_reset(tmp_path: Path) -> None:
    state = tmp_path / "state"
    first = await rehearsal.ensure(state, pace=HURRIED)
    async with log_in(first) as node:
        await node.run(("systemctl", "disable", "--now", OLD_UNIT), timeout=60)
        await node.write(f"{first.root}/srv/note", b"mine")
    assert await end(state) == ([], "")
    second = await rehearsal.ensure(state, pace=HURRIED)
    async with log_in(second) as node:
        assert await node.read(f"{first.root}/srv/note") == b"mine"
        assert (await node.run(("systemctl", "is-active", OLD_UNIT), timeout=30)) == Done(3, "inactive\n", "")
    key = first.client_key.read_bytes()
    await rehearsal.reset(state)
    assert rehearsal.status(state) is None
    assert not first.root.exists()
    third = await rehearsal.ensure(state, pace=HURRIED)
    try:
        async with log_in(third) as node:
            assert await capture(node, ("systemctl", "is-enabled", OLD_UNIT)) == "enabled\n"
        assert third.client_key.read_bytes() == key
    finally:
        assert await end(state) == ([], "")
    assert await rehearsal.stop(state) is False
    assert await rehearsal.stop(tmp_path / "nothing") is False


async def test_the_old_service_serves_and_holds_memory(practice: Practice) -> None:
    async with log_in(practice) as node:
        await _serving(practice, node)
        facts = await read_facts(node, Question(units=(OLD_UNIT,), ports=(OLD_PORT,)))
        unit = facts.units[OLD_UNIT]
        assert (unit.active, unit.sub, unit.enabled) == ("active", "running", "enabled")
        assert facts.listeners[0].pid == unit.main_pid
        assert facts.listeners[0].unit == OLD_UNIT
        assert facts.paths.units == f"{practice.root}/etc/systemd/system"
        assert facts.gpus is not None
        assert len(facts.gpus.gpus) == 8
        assert all((gpu.memory_used or 0) > 60 << 30 for gpu in facts.gpus.gpus)
        assert {process.unit for gpu in facts.gpus.gpus for process in gpu.processes} == {OLD_UNIT}
        answer = await node.http(OLD_PORT).request("GET", "/v1/models", limit=30)
        assert json.loads(answer.text)["data"][0]["id"] == "glm-5"


async def test_only_its_own_user_with_its_own_key_gets_in(shared_practice: Practice) -> None:
    other = asyncssh.generate_private_key("ssh-ed25519")
    for user, key in ((shared_practice.user, other), ("somebody", str(shared_practice.client_key))):
        with pytest.raises(asyncssh.PermissionDenied):
            await _connect(shared_practice, user, key)
    assert os.stat(shared_practice.client_key).st_mode & 0o777 == 0o600
    assert os.stat(shared_practice.state_dir).st_mode & 0o077 == 0


async def test_sessions_are_counted_as_sshd_counts_them(shared_practice: Practice) -> None:
    async with await _connect(shared_practice) as conn:
        held = [await conn.create_process("cat", encoding=None) for _ in range(10)]
        with pytest.raises(asyncssh.ChannelOpenError):
            await conn.create_process("true")
        held[0].stdin.write_eof()
        assert (await held[0].wait()).exit_status == 0
        await held[0].wait_closed()
        assert (await conn.run("echo free")).stdout == "free\n"


async def test_a_forward_to_a_closed_port_is_refused(shared_practice: Practice) -> None:
    async with await _connect(shared_practice) as conn:
        for host, port in (("127.0.0.1", 9), ("example.org", 80)):
            with pytest.raises(asyncssh.ChannelOpenError, match="refused"):
                await conn.open_connection(host, port)


async def test_a_silent_command_survives_its_link_and_a_guarded_one_does_not(shared_practice: Practice) -> None:
    """What OpenSSH does, as ENGINEERING 2b measured it."""
    conn = await _connect(shared_practice)
    silent = await conn.create_process("echo $$; exec sleep 300")
    guarded = await conn.create_process("echo $$; exec cat >/dev/null")
    pids = [int(await process.stdout.readline()) for process in (silent, guarded)]
    ticks = [start_ticks(pid) for pid in pids]
    assert None not in ticks
    conn.abort()
    await asyncio.to_thread(_wait_for, pids[1])
    assert start_ticks(pids[0]) == ticks[0]
    os.kill(pids[0], signal.SIGKILL)
    await asyncio.to_thread(_wait_for, pids[0])


async def test_signals_reach_the_command(shared_practice: Practice) -> None:
    async with await _connect(shared_practice) as conn:
        process = await conn.create_process("trap 'echo told; exit 5' TERM; echo ready; while :; do sleep 0.1; done")
        assert await process.stdout.readline() == "ready\n"
        process.terminate()
        done = await process.wait()
        assert (done.exit_status, done.stdout) == (5, "told\n")


async def test_nothing_outside_of_the_sandbox_can_be_changed(shared_practice: Practice) -> None:
    """Not even by root, nor over sftp; temporary folders excepted."""
    place = Path(__file__).with_name("written-by-a-practice-node")
    async with log_in(shared_practice) as node:
        answer = await node.run(("sh", "-c", f"echo x >'{place}'"), timeout=30)
        try:
            if answer == Done(0, "", ""):
                pytest.skip("this kernel has no Landlock")
            assert isinstance(answer, Done)
            assert "Permission denied" in answer.err
            with pytest.raises(CommandFailed):
                await node.write(str(place), b"x")
            job = ("systemd-run", "--quiet", "--wait", "--pipe", "touch", str(place))
            assert (await node.run(job, timeout=30)) != Done(0, "", "")
        finally:
            place.unlink(missing_ok=True)


async def test_faults_are_told_by_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no fault 'nonsense'") as caught:
        await rehearsal.ensure(tmp_path / "state", faults=("nonsense",))
    assert "never-starts" in caught.value.remedy
    with pytest.raises(UsageError, match="no step 'lunch'"):
        await rehearsal.ensure(tmp_path / "state", faults=("oom:lunch",))
    assert rehearsal.status(tmp_path / "state") is None


async def test_faults_are_written_and_cleared(new_practice: NewPractice, tmp_path: Path) -> None:
    async with new_practice(faults=("oom:launch", "slow")) as practice:
        assert practice.faults == ("oom:launch", "slow:inspect")
        told = json.loads((practice.root / "faults.json").read_text())
        assert (told["name"], told["step"], len(told["faults"])) == ("oom", "launch", 2)
        assert (await rehearsal.ensure(tmp_path / "state")).faults == ()
        assert not (practice.root / "faults.json").exists()


def _wait_for(pid: int) -> None:
    """Until a process that is no child of ours has ended."""
    import select

    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        select.select([handle], [], [], 60)
    finally:
        os.close(handle)


async def _serving(practice: Practice, node: object) -> None:
    """Until the old service answers: its own log says so."""
    from console.node.journal import follow
    from console.node.ssh import SshNode

    assert isinstance(node, SshNode)
    async with asyncio.timeout(60), follow(node, OLD_UNIT) as entries:
        async for entry in entries:
            if "Application startup complete" in entry.message:
                return


async def _connect(practice: Practice, user: str | None = None, key: object = None) -> asyncssh.SSHClientConnection:
    return await asyncssh.connect(
        practice.host, practice.port, username=user or practice.user, client_keys=[key or str(practice.client_key)],
        known_hosts=asyncssh.import_known_hosts(practice.host_key), config=None, agent_path=None,
    )  # fmt: skip
