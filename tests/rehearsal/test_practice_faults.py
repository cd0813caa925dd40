"""The faults that bite in the node itself: link, init, disk, other processes."""

from __future__ import annotations

import asyncio
import time

import asyncssh
import pytest

from console.node.base import Done, capture
from console.node.ssh import SshNode
from console.rehearsal import gpu_state
from console.rehearsal.practice import Practice
from console.rehearsal.seed import OLD_PORT, OLD_UNIT
from tests.rehearsal.conftest import NewPractice, log_in


async def test_never_starts(new_practice: NewPractice) -> None:
    """The new unit cannot be executed; the old one can, so that there is a way back."""
    async with new_practice(faults=("never-starts",)) as practice, log_in(practice) as node:
        await _unit(node, practice, "new.service", "ExecStart=/bin/sleep 300")
        answer = await node.run(("systemctl", "start", "new.service"), timeout=60)
        assert isinstance(answer, Done)
        assert answer.code == 1
        said = await capture(node, ("journalctl", "-q", "-o", "cat", "-u", "new.service"))
        assert "Failed to execute /bin/sleep: No such file or directory" in said
        assert "status=203/EXEC" in said
        assert await node.run(("systemctl", "restart", OLD_UNIT), timeout=60) == Done(0, "", "")


async def test_orphan(new_practice: NewPractice) -> None:
    """When the old service has stopped, something that belongs to no unit holds memory."""
    async with new_practice(faults=("orphan",)) as practice, log_in(practice) as node:
        assert await node.run(("systemctl", "stop", OLD_UNIT), timeout=60) == Done(0, "", "")
        holders = [holder for gpu in gpu_state.gpus(practice.root) for holder in gpu.holders]
        assert len(holders) == 1
        assert holders[0].mib > 1000
        groups = await node.run(("sh", "-c", "cat sys/fs/cgroup/system.slice/*/cgroup.procs"), timeout=30)
        assert isinstance(groups, Done)
        assert str(holders[0].pid) not in groups.out.split()


async def test_port_in_use(new_practice: NewPractice) -> None:
    async with new_practice(faults=("port-in-use",)) as practice, log_in(practice) as node:
        await node.run(("systemctl", "stop", OLD_UNIT), timeout=60)
        assert await capture(node, ("ss", "-H", "-ltnp")) == ""
        await _unit(node, practice, "new.service", "ExecStart=/bin/sleep 300")
        await node.run(("systemctl", "start", "new.service"), timeout=60)
        listeners = await capture(node, ("ss", "-H", "-ltnp"))
        assert f"127.0.0.1:{OLD_PORT}" in listeners
        squatter = listeners[listeners.index("pid=") :].partition(",")[0] + ","
        main = (await capture(node, ("systemctl", "show", "-p", "MainPID", "--value", "new.service"))).strip()
        assert squatter != f"pid={main},"
        assert (await node.http(OLD_PORT).request("GET", "/health", limit=30)).status == 404
        await node.run(("systemctl", "stop", "new.service"), timeout=60)
        assert await node.run(("systemctl", "start", OLD_UNIT), timeout=60) == Done(0, "", "")
        assert squatter not in await capture(node, ("ss", "-H", "-ltnp")), "the other one has gone"


async def test_drop(new_practice: NewPractice) -> None:
    """The link is cut when the download begins; the job goes on, and the node can be reached again."""
    async with new_practice(faults=("drop",)) as practice:
        conn = await asyncssh.connect(
            practice.host, practice.port, username=practice.user, client_keys=[str(practice.client_key)],
            known_hosts=asyncssh.import_known_hosts(practice.host_key), config=None, agent_path=None,
        )  # fmt: skip
        line = "systemd-run --quiet --unit=relaunch-download-x.service -- sleep 300; sleep 300"
        assert (await conn.run(line)).exit_status is None
        await conn.wait_closed()
        with pytest.raises((asyncssh.Error, OSError)):
            await asyncssh.connect(practice.host, practice.port, known_hosts=None, config=None, agent_path=None)
        async with asyncio.timeout(60):
            node = await _again(practice)
        assert node == "active\n"


async def test_slow(new_practice: NewPractice) -> None:
    """Every round trip takes its time, and everything still arrives whole."""
    async with new_practice(faults=("slow",)) as practice, log_in(practice) as node:
        began = time.monotonic()
        data = bytes(range(256)) * 400
        await node.write(f"{practice.root}/srv/x", data)
        assert await node.read(f"{practice.root}/srv/x") == data
        assert time.monotonic() - began > 0.3  # a floor that the simulated wire itself guarantees, not a speed


async def test_disk_full(new_practice: NewPractice) -> None:
    """Writing ends in ENOSPC while the download runs, in the node's own environments, and ends so when room is made."""
    script = (
        "import sys\nf = open(sys.argv[1], 'wb')\n"
        "for _ in range(100): f.write(bytes(1 << 16))\nf.close()\nprint('written')\n"
    )
    async with new_practice(faults=("disk-full",)) as practice, log_in(practice) as node:
        python = f"{practice.root}/opt/vllm-0.33.0/bin/python"
        argv = (python, "-I", "-c", script, f"{practice.root}/srv/models/big")
        assert await capture(node, (*argv[:-1], f"{practice.root}/srv/models/small")) == "written\n"
        job = ("systemd-run", "--quiet", "--wait", "--pipe", "--unit=relaunch-download-x.service", "--", *argv)
        answer = await node.run(job, timeout=60)
        assert isinstance(answer, Done)
        assert answer.code == 1
        assert "OSError: [Errno 28] No space left on device" in answer.err
        await node.run(("rm", f"{practice.root}/srv/models/small", f"{practice.root}/srv/models/big"), timeout=30)
        assert await capture(node, argv) == "written\n"


async def _unit(node: SshNode, practice: Practice, name: str, service: str) -> None:
    text = f"[Service]\nType=exec\n{service}\n"
    await node.write(f"{practice.root}/etc/systemd/system/{name}", text.encode())
    await node.run(("systemctl", "daemon-reload"), timeout=30)


async def _again(practice: Practice) -> str:
    """The state of the job, asked over a new connection as soon as one can be had."""
    while True:
        try:
            async with log_in(practice) as node:
                return await capture(node, ("systemctl", "is-active", "relaunch-download-x.service"))
        except Exception:  # the outage is not over
            await asyncio.sleep(0.1)
