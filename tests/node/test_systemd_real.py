"""systemd, the journal, detached jobs and facts on a real node: what stand-ins cannot prove."""

from __future__ import annotations

import ast
import asyncio
import base64
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from console.errors import Unreachable
from console.node import journal, systemd
from console.node.base import Done, Node, succeeded
from console.node.facts import Facts, Question, UnitState, read_facts
from console.node.jobs import JobLog, JobSpec, follow_job, job_state, start_job, stop_job
from console.node.leftovers import possessions, remove_shm, what_is_left
from console.node.ssh import SshNode
from console.text import Secret
from tests.contract.node_contract import HOSTILE
from tests.node.conftest import ConnectTo, Lab, Machine

CAP = 60.0
"""Seconds until a wait for an event counts as failed; nothing is measured by it."""

TELL = """import base64, json, os, sys
print(base64.b64encode(json.dumps([sys.argv[1:], dict(os.environ)]).encode()).decode(), flush=True)
"""


async def install(node: Node, unit: str, text: str) -> None:
    await node.write(f"/etc/systemd/system/{unit}", text.encode(), sudo=True)
    await done(node, systemd.daemon_reload())


async def done(node: Node, argv: tuple[str, ...]) -> Done:
    return succeeded(await node.run(argv, timeout=CAP, sudo=True), argv)


async def facts_of(node: Node, **asked: Any) -> Facts:
    return await read_facts(node, Question(**asked))


async def to_the_end(log: JobLog) -> None:
    async for _ in log:
        pass


async def until(states: AsyncIterator[UnitState], *wanted: str) -> UnitState:
    async with asyncio.timeout(CAP):
        async for state in states:
            if state.active in wanted:
                return state
    raise AssertionError(f"the watch ended before the unit was {wanted}")


# ---------------------------------------------------------------------------------------------------------- unit text


async def test_hostile_arguments_and_values_come_out_of_a_real_unit_intact(real_node: SshNode) -> None:
    arguments = [text for text in HOSTILE if "\0" not in text] + [
        ";",
        "\\;",
        "%H %i %%",
        "$$",
        "${HOME}x$HOME",
        "'",
        '{"kv": [1, "a\\"b"], "p": "50%"}',
        "trailing\\",
        "\u2028\u00a0",
        "-",
        "@x",
        "\x01\x7f",
    ]
    values = [
        text for text in arguments if not any((char < " " and char not in "\t\n") or char == "\x7f" for char in text)
    ]
    await real_node.write("/opt/tell.py", TELL.encode())
    lines = [f"Environment={systemd.environment_entry(f'V{number}', text)}" for number, text in enumerate(values)]
    command = systemd.exec_line(("/usr/bin/python3", "/opt/tell.py", *arguments))
    await install(
        real_node, "hostile.service", "[Service]\nType=oneshot\n" + "\n".join(lines) + f"\nExecStart={command}\n"
    )
    verified = await done(real_node, systemd.verify_file("/etc/systemd/system/hostile.service"))
    assert verified.err == ""
    cursor = await journal.last_cursor(real_node)
    await done(real_node, systemd.start("hostile.service"))
    async with asyncio.timeout(CAP), journal.follow(real_node, "hostile.service", cursor=cursor) as entries:
        encoded = ""
        async for entry in entries:
            if entry.source == "python3":
                encoded += entry.message
                if len(encoded) % 4 == 0 and len(entry.message) < 40000:
                    break
    argv, environment = json.loads(base64.b64decode(encoded))
    assert argv == arguments
    assert [environment[f"V{number}"] for number in range(len(values))] == values


async def test_transient_arguments_are_not_expanded(real_node: SshNode) -> None:
    await real_node.write("/opt/tell.py", TELL.encode())
    arguments = ("$HOME", "${PATH}", "$$", "%H", "a b", 'q"q', "back\\slash")
    cursor = await journal.last_cursor(real_node)
    argv = systemd.transient(
        "tr1.service", ("/usr/bin/python3", "/opt/tell.py", *arguments), environment={"ODD": 'a $HOME %H "q" \\'}
    )
    await done(real_node, argv)
    async with asyncio.timeout(CAP), journal.follow(real_node, "tr1.service", cursor=cursor) as entries:
        async for entry in entries:
            if entry.source == "python3":
                break
    told, environment = json.loads(base64.b64decode(entry.message))
    assert tuple(told) == arguments
    assert environment["ODD"] == 'a $HOME %H "q" \\'


# -------------------------------------------------------------------------------------------------------------- watching


@pytest.mark.parametrize("user", ["root", "ops"])
async def test_watch_unit_tells_every_state_of_a_life(user: str, real_node: SshNode, real_node_ops: SshNode) -> None:
    node = real_node if user == "root" else real_node_ops
    unit = f"life{user}.service"
    await install(node, unit, "[Service]\nType=exec\nExecStart=/bin/sleep 600\n")
    async with systemd.watch_unit(node, unit) as states:
        assert (await until(states, "inactive")).load == "loaded"
        await done(node, systemd.start(unit))
        up = await until(states, "active")
        assert up.main_pid > 0
        assert up.cgroup == f"/system.slice/{unit}"
        await done(node, systemd.kill(unit, "SIGKILL"))
        down = await until(states, "failed")
        assert (down.result, down.exit_kind, down.exit_status) == ("signal", "killed", 9)


async def test_states_of_several_units_by_one_call(real_node: SshNode) -> None:
    states = await systemd.states(real_node, ("ssh.service", "nothing.service"))
    assert (states["ssh.service"].active, states["nothing.service"].load) == ("active", "not-found")
    whole = await systemd.unit_state(real_node, "ssh.service", text=True)
    assert whole.text is not None
    assert "[Service]" in whole.text


# -------------------------------------------------------------------------------------------------------------- journal


async def test_following_again_from_a_cursor_repeats_nothing_and_misses_nothing(real_node: SshNode) -> None:
    script = "import time\nfor i in range(300):\n    print('line', i, flush=True)\ntime.sleep(600)\n"
    await real_node.write("/opt/count.py", script.encode())
    await install(real_node, "count.service", "[Service]\nType=exec\nExecStart=/usr/bin/python3 /opt/count.py\n")
    await done(real_node, systemd.start("count.service"))
    state = await systemd.unit_state(real_node, "count.service")
    seen: list[str] = []
    cursor = None
    async with asyncio.timeout(CAP):
        while "line 299" not in seen:
            async with journal.follow(
                real_node, "count.service", invocation=state.invocation, cursor=cursor
            ) as entries:
                async for entry in entries:
                    cursor = entry.cursor
                    if entry.source == "python3":
                        assert entry.pid == state.main_pid
                        seen.append(entry.message)
                        if len(seen) % 70 == 0 or entry.message == "line 299":
                            break
    await done(real_node, systemd.stop("count.service"))
    assert seen == [f"line {number}" for number in range(300)]


async def test_an_invocation_holds_what_systemd_says_and_nothing_of_the_start_before(real_node: SshNode) -> None:
    await install(real_node, "once.service", "[Service]\nType=exec\nExecStart=/bin/echo hello\n")
    await done(real_node, systemd.start("once.service"))
    await install(real_node, "once.service", "[Service]\nType=exec\nExecStart=/nowhere/program\n")
    refused = await real_node.run(systemd.start("once.service"), timeout=CAP)
    assert isinstance(refused, Done)
    assert refused.code != 0
    state = await systemd.unit_state(real_node, "once.service")
    async with (
        asyncio.timeout(CAP),
        journal.read(real_node, "once.service", invocation=state.invocation) as entries,
    ):
        said = [entry.message async for entry in entries]
    assert any("/nowhere/program" in line for line in said)
    assert "hello" not in said


async def test_bytes_and_long_messages_arrive_whole(real_node: SshNode) -> None:
    script = "import sys\nsys.stdout.buffer.write(b'caf\\xe9\\n' + b'x' * 200000 + b'\\n')\n"
    await real_node.write("/opt/odd.py", script.encode())
    await install(real_node, "odd.service", "[Service]\nType=oneshot\nExecStart=/usr/bin/python3 /opt/odd.py\n")
    await done(real_node, systemd.start("odd.service"))
    async with asyncio.timeout(CAP), journal.follow(real_node, "odd.service") as entries:
        said = ""
        async for entry in entries:
            if entry.source == "python3":
                said += entry.message
                if len(said) >= 200004:
                    break
    assert said == "caf\N{REPLACEMENT CHARACTER}" + "x" * 200000


# ----------------------------------------------------------------------------------------------------------------- jobs

WORK = """import os, sys, time
secret = open("token").read()
print("began with a secret of", len(secret), os.environ["COLOUR"], os.getcwd(), flush=True)
for number in range(int(sys.argv[1])):
    print("step", number, flush=True)
    time.sleep(0.02)
open("result.json", "w").write("{}")
sys.exit(int(sys.argv[2]))
"""
SENTINEL = "hf_SENTINEL0123456789abcdef"


def job(name: str, steps: int, code: int = 0) -> JobSpec:
    return JobSpec(
        name=name,
        argv=("python3", "work.py", str(steps), str(code)),
        files={"work.py": WORK.encode(), "in/side.txt": b"x"},
        secrets={"token": Secret(SENTINEL)},
        environment={"COLOUR": "a $b %c"},
    )


@pytest.mark.parametrize("user", ["root", "ops"])
async def test_a_job_from_start_to_end(user: str, real_node: SshNode, real_node_ops: SshNode, machine: Machine) -> None:
    node = real_node if user == "root" else real_node_ops
    facts = await facts_of(node)
    started = await start_job(node, facts, job("whole", 20, 3))
    assert not started.adopted
    assert started.state.phase == "running"
    async with asyncio.timeout(CAP), follow_job(node, facts, "whole") as log:
        said = [entry.message async for entry in log if entry.source == "python3"]
    assert said[0] == f"began with a secret of {len(SENTINEL)} a $b %c /var/lib/relaunch/jobs/whole"
    assert said[1:21] == [f"step {number}" for number in range(20)]
    assert log.state is not None
    state = await job_state(node, facts, "whole")
    assert (state.phase, state.code, state.signal, state.stopped) == ("failed", 3, None, False)
    assert state.ended is not None
    assert state.started is not None
    assert state.ended >= state.started
    listing = machine.ssh("ls -la /var/lib/relaunch/jobs/whole; stat -c '%a %U' /var/lib/relaunch/jobs/whole")
    assert "token" not in listing
    assert f"700 {user}" in listing
    assert "result.json" in listing
    everything = machine.ssh(
        "journalctl -a -o export --no-pager; grep -r hf_SENT /var/lib/relaunch /run/systemd || true"
    )
    assert SENTINEL not in everything


async def test_a_job_outlives_the_link_and_is_adopted(machine: Machine, connect_to: ConnectTo, lab: Lab) -> None:
    fault = lab.boot("n9")
    try:
        async with connect_to(fault) as node:
            facts = await facts_of(node)
            first = await start_job(node, facts, job("long", 100000))
            cursor, seen = None, []
            async with asyncio.timeout(CAP), follow_job(node, facts, "long") as log:
                async for entry in log:
                    seen.append(entry.message)
                    if len(seen) == 20:
                        break
                cursor = log.cursor
        async with connect_to(fault) as node:
            again = await start_job(node, facts, job("long", 100000))
            assert again.adopted
            assert again.same
            assert (again.state.pid, again.state.ticks) == (
                (await job_state(node, facts, "long")).pid,
                (await job_state(node, facts, "long")).ticks,
            )
            assert again.state.invocation == first.state.invocation
            other = await start_job(node, facts, job("long", 7))
            assert other.adopted
            assert not other.same
            async with asyncio.timeout(CAP), follow_job(node, facts, "long", cursor) as log:
                async for entry in log:
                    seen.append(entry.message)
                    if len(seen) == 60:
                        break
            steps = [line for line in seen if line.startswith("step ")]
            assert steps == [f"step {number}" for number in range(len(steps))]
            await stop_job(node, "long")
            ended = await job_state(node, facts, "long")
            assert (ended.phase, ended.stopped, ended.signal) == ("failed", True, 15)
            await stop_job(node, "long")

            await start_job(node, facts, job("long", 100000))
            fault.reset()
        async with connect_to(fault) as node:
            state = await job_state(node, facts, "long")
            assert state.phase == "lost"
            # its secret goes with the next job that is started, whatever its name
            await start_job(node, facts, job("other", 1))
            assert "token" not in fault.ssh("ls /var/lib/relaunch/jobs/long")
            assert (await job_state(node, facts, "never")).phase == "absent"
    finally:
        lab.halt("n9")


async def test_a_dropped_link_surfaces_while_following(fault_machine: Machine, connect_to: ConnectTo) -> None:
    async with connect_to(fault_machine) as node:
        facts = await facts_of(node)
        await start_job(node, facts, job("drop", 100000))
        async with asyncio.timeout(CAP), follow_job(node, facts, "drop") as log:
            await anext(aiter(log))
            with fault_machine.refuse(), pytest.raises(Unreachable):
                await to_the_end(log)
        cursor = log.cursor
        assert cursor is not None
    async with connect_to(fault_machine) as node:
        async with asyncio.timeout(CAP), follow_job(node, facts, "drop", cursor) as log:
            entry = await anext(aiter(log))
            assert entry.cursor != cursor
        await stop_job(node, "drop")


async def test_a_program_that_cannot_start_ends_the_job_with_127(real_node: SshNode) -> None:
    facts = await facts_of(real_node)
    await start_job(real_node, facts, JobSpec(name="nowhere", argv=("/nowhere/program",)))
    async with asyncio.timeout(CAP), follow_job(real_node, facts, "nowhere") as log:
        async for _ in log:
            pass
    state = await job_state(real_node, facts, "nowhere")
    assert (state.phase, state.code) == ("failed", 127)
    assert "/nowhere/program" in state.error


# ---------------------------------------------------------------------------------------------------------------- facts


async def test_facts_as_root(real_node: SshNode, machine: Machine) -> None:
    machine.put("/opt/facts/model/config.json", b'{"a": "caf\xe9"}', 0o644)
    machine.ssh("ln -sf config.json /opt/facts/model/link; ln -sf nowhere /opt/facts/model/broken")
    machine.ssh(
        "truncate -s 1M /opt/facts/model/hole; mkdir -p /opt/facts/model/.cache/x; touch /opt/facts/model/.cache/x/y"
    )
    facts = await facts_of(
        real_node,
        folders=("/opt/facts/model", "~/none"),
        disks=("/opt/facts/not/yet", "state:/"),
        units=("ssh.service", "nothing.service"),
        ports=(22,),
        read=("/opt/facts/model/*.json", "state:/none/*.json"),
    )
    assert (facts.user, facts.uid, facts.root, facts.paths.home) == ("root", 0, True, "/root")
    assert (facts.paths.units, facts.paths.state) == ("/etc/systemd/system", "/var/lib/relaunch")
    assert facts.systemd is not None
    assert facts.systemd >= 240
    ssh = facts.units["ssh.service"]
    assert (ssh.active, ssh.load) == ("active", "loaded")
    assert ssh.text is not None
    assert facts.units["nothing.service"].load == "not-found"
    assert str(ssh.main_pid) in machine.ssh(f"cat {facts.paths.cgroup}{ssh.cgroup}/cgroup.procs").split()
    assert {(one.port, one.pid, one.unit) for one in facts.listeners} == {(22, ssh.main_pid, "ssh.service")}
    files = {entry.name: entry for entry in facts.folders["/opt/facts/model"].files}
    assert set(files) == {"config.json", "link", "broken", "hole", ".cache/x/y"}
    assert (files["link"].link, files["link"].size) == ("config.json", files["config.json"].size)
    assert (files["broken"].link, files["broken"].size) == ("nowhere", 0)
    assert (files["hole"].size, files["hole"].allocated) == (1 << 20, 0)
    assert not facts.folders["~/none"].exists
    text = facts.files["/opt/facts/model/config.json"]
    assert text.encode(errors="surrogateescape") == b'{"a": "caf\xe9"}'
    assert facts.disks["/opt/facts/not/yet"].mount == "/"
    assert facts.disks["/var/lib/relaunch"] == facts.disks["state:/"]
    assert facts.path("state:/none") == "/var/lib/relaunch/none"
    assert facts.gpus is not None


async def test_a_unit_rewritten_under_its_running_process_is_stale(real_node: SshNode) -> None:
    async def look() -> UnitState:
        return (await facts_of(real_node, units=("rewritten.service",))).units["rewritten.service"]

    await install(real_node, "rewritten.service", "[Service]\nType=exec\nExecStart=/bin/sleep 600\n")
    assert not (await look()).stale
    await done(real_node, systemd.start("rewritten.service"))
    assert not (await look()).stale
    await install(real_node, "rewritten.service", "[Service]\nType=exec\nExecStart=/bin/sleep 601\n")
    state = await look()
    assert (state.stale, state.need_reload, state.active) == (True, False, "active")
    await done(real_node, systemd.restart("rewritten.service"))
    assert not (await look()).stale


async def test_facts_as_a_sudo_user_are_the_users_and_hide_nothing(real_node_ops: SshNode) -> None:
    facts = await facts_of(real_node_ops, ports=(22,))
    assert (facts.user, facts.root, facts.paths.home) == ("ops", True, "/home/ops")
    assert facts.uid != 0
    assert all(one.unit == "ssh.service" for one in facts.listeners)
    assert facts.listeners


async def test_facts_without_sudo_name_what_is_missing(machine: Machine, connect_to: ConnectTo) -> None:
    machine.ssh(
        "id plain || (useradd -m plain && cp -r /home/ops/.ssh /home/plain/ && chown -R plain:plain /home/plain/.ssh)"
    )
    async with connect_to(machine, user="plain") as node:
        facts = await facts_of(node, ports=(22,))
    assert (facts.user, facts.root) == ("plain", False)
    assert [one.pid for one in facts.listeners] == [None] * len(facts.listeners)
    assert any("root" in sentence for sentence in facts.missing)
    assert any("listening" in sentence for sentence in facts.missing)


# ------------------------------------------------------------------------------------------------------------ leftovers

SERVICE = """import mmap, os, signal, socket, sys, time
port = socket.socket(); port.bind(("127.0.0.1", 18777)); port.listen()
for name in ("psm_ours", "sem.mp-ours"):
    with open("/dev/shm/" + name, "wb+") as file:
        file.write(bytes(4096)); file.flush()
        keep = mmap.mmap(file.fileno(), 4096) if name == "psm_ours" else None
        if keep is not None: held = keep
if os.fork() == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
time.sleep(600)
"""


async def test_what_a_service_leaves_is_known_by_identity(real_node: SshNode, machine: Machine) -> None:
    machine.put("/opt/service.py", SERVICE.encode(), 0o644)
    machine.ssh(
        "rm -f /dev/shm/psm_* /dev/shm/sem.mp-*; echo x >/dev/shm/psm_other; touch -d '2 days ago' /dev/shm/psm_other"
    )
    text = "[Service]\nType=exec\nExecStart=/usr/bin/python3 /opt/service.py\nTimeoutStopSec=1\n"
    await install(real_node, "leaves.service", text)
    await done(real_node, systemd.start("leaves.service"))
    group = "/system.slice/leaves.service"
    async with asyncio.timeout(CAP):
        while len(machine.ssh("ls /dev/shm").split()) < 3:  # noqa: ASYNC110 - the service gives no event
            await asyncio.sleep(0.05)
    facts = await facts_of(real_node, units=("leaves.service",))
    had = await possessions(real_node, facts, [group])
    assert len(had.processes) == 2
    assert [name for name, _ in had.shm] == ["psm_ours"]
    assert [one.port for one in facts.listeners] == [18777]

    assert had.ports == (18777,)
    still = await what_is_left(real_node, facts, had, wait=0.1)
    assert not still.clean
    assert len(still.processes) == 2
    assert (still.ports, still.taken) == ((18777,), ())

    await done(real_node, systemd.stop("leaves.service"))
    taker = "import socket, time; s = socket.create_server(('127.0.0.1', 18777)); print('mine', flush=True); time.sleep(999)"
    await install(real_node, "taker.service", f'[Service]\nType=exec\nExecStart=/usr/bin/python3 -c "{taker}"\n')
    await done(real_node, systemd.start("taker.service"))
    async with asyncio.timeout(CAP):
        while not machine.ssh("ss -Hltn sport = :18777"):  # noqa: ASYNC110 - the service gives no event
            await asyncio.sleep(0.05)
    left = await what_is_left(real_node, facts, had)
    assert left.clean, "a port that somebody else took meanwhile is not the old service's"
    assert left.taken == (18777,)
    await done(real_node, systemd.stop("taker.service"))
    state = await systemd.unit_state(real_node, "leaves.service")
    assert (state.active, state.result) == ("failed", "timeout")
    assert set(left.shm) == {"psm_other", "psm_ours", "sem.mp-ours"}
    cleaned = await remove_shm(real_node, facts, had)
    assert [name for name, _ in cleaned.removed] == ["psm_ours"]
    assert ("psm_other", "not known to be ours") in cleaned.kept
    cleaned = await remove_shm(real_node, facts, replace(had, until=left.time))
    assert [name for name, _ in cleaned.removed] == ["sem.mp-ours"]
    assert machine.ssh("ls /dev/shm").split() == ["psm_other"]


def test_scripts_that_run_on_nodes_are_python_3_6() -> None:
    for path in Path("console/node").glob("node_*.py"):
        ast.parse(path.read_text(), feature_version=(3, 6))
