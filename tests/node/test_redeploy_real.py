"""The whole redeploy on a real systemd and OpenSSH node, as root and as a user with sudo; GPUs, vLLM and hub are stand-ins."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from console.deploy.script import load_script
from console.deploy.store import open_store
from console.engine import Engine, RunOptions, agree
from console.events import CauseFound, Event, RunEnded, StepChanged
from console.node.ssh import connect
from console.text import Secret
from tests.node.gpu_box import GpuBox, furnish, gpu_box
from tests.node.lab import Lab, Machine

SENTINEL = "hf_SentinelNobodyMayEverSee42"

pytestmark = pytest.mark.timeout(280)


@pytest.fixture(scope="module")
def furnished(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Machine]:
    machine = lab.boot("gpubox")
    furnish(machine, tmp_path_factory.mktemp("furnish"))
    yield machine
    lab.halt("gpubox")


@pytest.fixture
async def box(furnished: Machine, tmp_path: Path) -> AsyncIterator[GpuBox]:
    async with gpu_box(furnished, tmp_path) as made:
        yield made


async def redeploy(box: GpuBox, user: str, *, script: str = "redeploy") -> tuple[RunEnded, list[Event]]:
    events: list[Event] = []
    with open_store() as store:
        async with connect(box.machine.target(user)) as node:
            engine = Engine(node, box.profile, store)
            engine.subscribe(events.append)
            end = await engine.run(load_script(script), RunOptions(confirm=agree, token=Secret(SENTINEL)))
    return end, events


def holding(folder: Path, text: str) -> list[Path]:
    """Files below `folder` that contain `text`."""
    return [path for path in folder.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


def told(events: list[Event]) -> str:
    return "\n".join(
        f"{event.step} {event.state} {event.detail}" if isinstance(event, StepChanged) else event.text
        for event in events
        if isinstance(event, StepChanged | CauseFound)
    )


@pytest.mark.parametrize("user", ["root", "ops"])
async def test_from_the_old_model_to_the_new_one(box: GpuBox, user: str, own_home: Path) -> None:
    machine = box.machine
    machine.ssh("systemctl stop vllm-kimi.service 2>/dev/null; systemctl start vllm-glm5.service", check=False)
    if user == "ops":  # begin anew, so that every step has something to do for this login too
        machine.ssh(
            "systemctl disable -q vllm-kimi.service; rm -rf /etc/systemd/system/vllm-kimi.service /var/lib/relaunch "
            "/srv/models/Kimi-K2.5-NVFP4 /opt/vllm-0.16.0; systemctl daemon-reload"
        )
    end, events = await redeploy(box, user)
    assert end.code == 0, told(events)
    assert machine.ssh("systemctl is-active vllm-kimi.service").strip() == "active"
    assert machine.ssh("systemctl is-active vllm-glm5.service", check=False).strip() in ("inactive", "failed")
    assert machine.ssh("systemctl is-enabled vllm-kimi.service").strip() == "enabled"
    before = machine.ssh("systemctl show -p InvocationID,MainPID vllm-kimi.service")
    assert '"kv_cache_scheme": null' in machine.ssh("cat /var/lib/relaunch/overlays/*/config.json")

    again, satisfied = await redeploy(box, user)
    assert again.code == 0, told(satisfied)
    states = {event.step: event.state for event in satisfied if isinstance(event, StepChanged)}
    assert set(states.values()) == {"satisfied"}, told(satisfied)
    assert machine.ssh("systemctl show -p InvocationID,MainPID vllm-kimi.service") == before

    # the token went over the wire, and is nowhere: no file, no journal, no event, no store
    assert SENTINEL not in repr(events)
    assert holding(own_home, SENTINEL) == []
    assert (
        machine.ssh(f"grep -rlF {SENTINEL} /var/lib/relaunch /etc /srv /opt /root /home /run 2>/dev/null", check=False)
        == ""
    )
    assert machine.ssh(f"journalctl --no-pager -q -o export | grep -caF {SENTINEL}", check=False).strip() == "0"

    if user == "ops":
        stopped, ending = await redeploy(box, user, script="stop")
        assert stopped.code == 0, told(ending)
        assert machine.ssh("systemctl is-active vllm-kimi.service", check=False).strip() == "inactive"
        assert machine.ssh("ss -Hltn sport = :8000").strip() == ""
        assert '"stop"' in machine.ssh("cat /var/lib/relaunch/audit.jsonl")
        nothing, ending = await redeploy(box, user, script="stop")
        assert nothing.code == 0, told(ending)
        assert "nothing serves" in told(ending)


async def test_a_launch_that_fails_brings_the_old_model_back(box: GpuBox) -> None:
    machine = box.machine
    machine.ssh("systemctl stop vllm-kimi.service; systemctl start vllm-glm5.service", check=False)
    machine.ssh(
        """mkdir -p /var/lib/relaunch-practice && echo '{"name": "oom"}' >/var/lib/relaunch-practice/faults.json"""
    )
    try:
        end, events = await redeploy(box, "root")
    finally:
        machine.ssh("rm -f /var/lib/relaunch-practice/faults.json")
    causes = [event for event in events if isinstance(event, CauseFound)]
    assert end.code == 11, told(events)
    assert "OutOfMemoryError" in causes[0].text
    assert machine.ssh("systemctl is-active vllm-glm5.service").strip() == "active"
    assert machine.ssh("systemctl is-active vllm-kimi.service", check=False).strip() != "active"
