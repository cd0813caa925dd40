"""The transaction on a real systemd and OpenSSH node: the switch as a real timer, kills, a power cycle, a stopped PID 1."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.field_lab import LabSite
from tests.node.gpu_box import furnish, gpu_box
from tests.node.lab import Lab, Machine

pytestmark = pytest.mark.timeout(280)


@pytest.fixture(scope="module")
def furnished(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    machine = lab.boot("txbox")
    furnish(machine, tmp_path_factory.mktemp("furnish"))
    yield machine
    lab.halt("txbox")


@pytest.fixture
async def site(furnished: Machine, tmp_path: Path) -> AsyncIterator[LabSite]:
    async with gpu_box(furnished, tmp_path) as box:
        made = LabSite(tmp_path, box)
        await (made.begin(bare=False) if await made.furnished() else made.furnish())
        yield made


async def restored(site: LabSite) -> None:
    async with asyncio.timeout(90):
        while (await site.record()).get("state") != "restored":  # noqa: ASYNC110
            await asyncio.sleep(0.3)  # the node's own file; there is no console to ask


async def test_nobody_comes_back_so_the_node_goes_back(site: LabSite) -> None:
    site.deadman = 4
    console = await site.redeploy()
    assert await console.until("launch", "running"), console.told()
    timers = await site.sh("systemctl", "list-timers", "--all", "--no-legend")
    console.kill()
    await console.ended()
    await restored(site)
    assert "relaunch-deadman.timer" in timers
    assert (await site.serving()).model == "glm-5"
    assert await site.left_behind() == []
    lines = [line for line in await site.audit() if line["operator"] == "relaunch-deadman"]
    assert lines[-1]["action"] == "dead man's switch: vllm-glm5.service serves again on port 8000"
    assert await site.sh("systemctl", "list-timers", "--all", "--no-legend", "relaunch-*") == ""


async def test_a_killed_console_is_taken_up_where_it_was(site: LabSite) -> None:
    site.user = "ops"  # who must use sudo for everything
    console = await site.redeploy()
    assert await console.until("launch", "running"), console.told()
    console.kill()
    await console.ended()
    again = await site.console("resume", "--yes")
    assert await again.ended() == 0, again.told()
    assert (await site.serving()).model == "kimi-k2.5"
    assert await site.left_behind() == []
    who = {line["operator"] for line in await site.audit()}
    assert len(who) == 1
    assert any(line["action"] == "systemctl stop vllm-glm5.service" for line in await site.audit())


async def test_a_power_cycle_in_downtime_is_survived(site: LabSite) -> None:
    console = await site.redeploy()
    assert await console.until("launch", "running"), console.told()
    await site.power_cycle()
    code = await console.ended(200)
    assert code in (0, 11), console.told()
    assert (await site.serving()).model == ("kimi-k2.5" if code == 0 else "glm-5")
    assert await site.left_behind() == []


async def test_the_switch_outlives_a_power_cycle(site: LabSite) -> None:
    """Nothing but the switch starts a model after this boot, its time is over by then, and nobody comes back."""
    site.deadman = 5
    console = await site.redeploy()
    assert await console.until("launch", "running"), console.told()
    enabled = await site.sh("systemctl", "is-enabled", "relaunch-deadman.service")
    await site.shell("systemctl disable -q vllm-glm5.service")
    console.kill()
    await console.ended()
    await site.power_cycle()
    await restored(site)
    assert enabled.strip() == "enabled"
    assert (await site.serving()).model == "glm-5"
    assert await site.left_behind() == []
    assert (
        await site.shell("find /etc/systemd/system /var/lib/relaunch/deadman -name '*deadman*.*' -o -name '*.py'") == ""
    )
    assert await site.sh("systemctl", "list-units", "--all", "--no-legend", "relaunch-*") == ""
    lines = [line["action"] for line in await site.audit() if line["operator"] == "relaunch-deadman"]
    assert lines[-1] == "dead man's switch: vllm-glm5.service serves again on port 8000"


async def test_a_stopped_pid_1_is_waited_for(site: LabSite) -> None:
    console = await site.redeploy()
    assert await console.until("stop", "running"), console.told()
    await site.systemd_stopped(4.0)
    assert await console.ended() == 0, console.told()
    assert (await site.serving()).model == "kimi-k2.5"
    assert await site.left_behind() == []


async def test_rollback_and_back(site: LabSite) -> None:
    console = await site.redeploy()
    assert await console.ended() == 0, console.told()
    back = await site.console("rollback", "--yes")
    assert await back.ended() == 0, back.told()
    assert (await site.serving()).model == "glm-5"
    assert await site.left_behind() == []
    assert (await site.sh("systemctl", "is-enabled", "vllm-glm5.service")).strip() == "enabled"
    forth = await site.console("rollback", "1", "--yes")
    assert await forth.ended() == 0, forth.told()
    assert (await site.serving()).model == "kimi-k2.5"
    await site.shell("rm -r /opt/vllm-0.16.0.away 2>/dev/null; mv /opt/vllm-0.16.0 /opt/vllm-0.16.0.away")
    try:
        broken = await site.console("rollback", "1", "--yes")
        assert await broken.ended() == 3, broken.told()
        assert "there is no vLLM in /opt/vllm-0.16.0" in broken.told()
    finally:
        await site.shell("mv /opt/vllm-0.16.0.away /opt/vllm-0.16.0")
    assert (await site.serving()).model == "kimi-k2.5", "refused before anything was stopped"
