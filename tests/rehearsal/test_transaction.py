"""A redeploy as a transaction: whatever ends its console, and whenever, a model serves in the end and nothing is left behind.

One strong cell for each kind of failure; `python -m tests.matrix` has every fault at every step. The console is a process of
its own here, so that it can be killed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from console.rehearsal.seed import OLD_UNIT
from tests.field import OURS, Console
from tests.field_practice import Site, keep_disk, practice_site
from tests.matrix_cells import store_troubles

pytestmark = pytest.mark.timeout(240)

LOADING = {"engine_init", "nccl_init", "model_loading", "weights_loading"}
"""Stages of a start that is under way; those that pass within one batch of lines are told as the last of them."""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A folder, and the disk of a node in it on which everything has been done that needs no downtime."""
    folder = tmp_path_factory.mktemp("site")

    async def prepare() -> Path:
        async with practice_site(folder) as site:
            console = await site.console("--script", "prepare", "--yes")
            assert await console.ended() == 0, console.told()
            return await keep_disk(site, "prepared")

    return folder, asyncio.run(prepare())


@pytest.fixture
async def site(prepared: tuple[Path, Path]) -> AsyncIterator[Site]:
    folder, disk = prepared
    async with practice_site(folder, disk=disk) as made:
        load_slowly(made)
        yield made


def load_slowly(site: Site) -> None:
    """The new model loads for some seconds, so that things can happen meanwhile."""
    (site.root / "pace.json").write_text(json.dumps({"load": 0.4, "tokens": 0.0}))


async def in_order(site: Site) -> None:
    """The new model serves and is kept; nothing of the transaction is left."""
    assert (await site.serving()).model == "kimi-k2.5"
    assert await site.left_behind() == []
    assert (site.state / "last-good").read_text().strip()
    assert store_troubles(site.folder / "home-me") == []


async def invocation(site: Site) -> str:
    return await site.sh("systemctl", "show", "-p", "InvocationID,MainPID", OURS)


async def test_a_console_killed_and_its_resume_interrupted_and_the_launch_is_followed_all_the_same(site: Site) -> None:
    console = await site.redeploy()
    assert await console.until_seen(lambda: any(e["stage"] in LOADING for e in console.of("stage"))), console.told()
    weights, started = await site.weights(), await invocation(site)
    console.kill()
    await console.ended()

    second = await site.console("resume", "--yes")
    assert await second.until_seen(lambda: "going on with the downtime of run" in notes(second)), second.told()
    second.terminate()
    assert await second.ended() == 130, second.told()
    assert "took over the stale lock of me@" in second.told()
    assert "without a console within 15:00 it goes back to what served before" in second.told()

    third = await site.console("resume", "--yes")
    assert await third.ended() == 0, third.told()
    await in_order(site)
    assert await invocation(site) == started
    assert await site.weights() == weights, "nothing was fetched again"
    starts = [line["action"] for line in site.audit() if line["action"].startswith("systemctl start")]
    assert len(starts) == 1, starts
    release = json.loads((site.state / "releases/1.json").read_text())
    assert release["stopped"] == ["vllm-glm5.service"], "what the killed run had stopped is known to the last one"


def notes(console: Console) -> str:
    return "\n".join(event["text"] for event in console.of("note"))


async def test_the_switch_outlives_a_power_cycle(site: Site) -> None:
    site.deadman = 900
    console = await site.redeploy()
    assert await console.until("launch", "running")
    await site.sh("systemctl", "disable", OLD_UNIT)
    console.kill()
    await console.ended()
    plan = site.state / "deadman/plan.json"
    plan.write_text(
        json.dumps({**json.loads(plan.read_text()), "seconds": 1})
    )  # the time is over when the power is back
    await site.power_cycle()
    async with asyncio.timeout(60):
        while (await site.record()).get("state") != "restored":  # noqa: ASYNC110
            await asyncio.sleep(0.1)  # the node's own file; there is no console to ask
    assert (await site.serving()).model == "glm-5"
    assert await site.left_behind() == []
    assert sorted(path.name for path in (site.state / "deadman").iterdir()) == ["guard", "record.json"]
    assert list((site.root / "etc/systemd/system").rglob("relaunch-*")) == []


async def test_a_link_that_stays_cut_ends_as_restored_by_the_node_itself(site: Site) -> None:
    site.deadman = 5
    console = await site.redeploy()
    assert await console.until("launch", "running"), console.told()
    await site.cut()
    async with asyncio.timeout(120):
        while (await site.record()).get("state") != "restored":  # noqa: ASYNC110
            await asyncio.sleep(0.1)  # the node's own file, past the cut link
    assert (await site.serving()).model == "glm-5"
    assert await site.left_behind() == []
    lines = [line for line in site.audit() if line["operator"] == "relaunch-deadman"]
    assert [line["action"] for line in lines] == [
        "no console confirmed within 5 s: going back to what served before",
        "systemctl stop vllm-kimi.service",
        f"remove {site.root}/etc/systemd/system/vllm-kimi.service",
        "systemctl daemon-reload",
        "systemctl start vllm-glm5.service",
        "dead man's switch: vllm-glm5.service serves again on port 8000",
    ]
    assert lines[-1]["result"] == "restored"

    await site.heal()
    assert await console.ended() == 11, console.told()
    assert "has acted" in console.told()
    ended = console.of("downtime")[-1]
    assert ended["state"] == "ended"
    assert ended["seconds"] > 0
    status = await site.console("status")
    await status.ended()
    assert "has acted" in str(status.events)


async def test_two_consoles_at_once(site: Site) -> None:
    first = await site.redeploy()
    assert await first.until("launch", "running"), first.told()
    refused = await site.console("--script", "redeploy", "--yes", who="other")
    watcher = await site.console("status", who="watcher")
    waiting = await site.console("--script", "redeploy", "--yes", "--lock-wait", "200", who="patient")
    assert await refused.ended() == 5, refused.told()
    assert "is locked by me@" in refused.told()
    assert await watcher.ended() == 0
    assert "me@" in str(watcher.events)
    assert "is armed" in str(watcher.events)
    assert await first.ended() == 0, first.told()
    assert await waiting.ended(200) == 0, waiting.told()
    assert any(event["state"] == "satisfied" for event in waiting.of("step") if event["step"] == "launch")
    await in_order(site)
