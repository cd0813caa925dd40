"""A redeploy as a transaction: whatever ends its console, and whenever, a model serves in the end and nothing is left behind.

The console is a process of its own here, so that it can be killed. `python -m tests.matrix` does this for every step.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.field import OURS, Site, keep_disk, practice_site
from tests.matrix import store_troubles

pytestmark = pytest.mark.timeout(180)

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
        yield made


def actions(site: Site, run: str = "") -> list[str]:
    return [line["action"] for line in site.audit() if not run or line["run"] == run]


async def resumed(site: Site) -> str:
    console = await site.console("resume", "--yes")
    assert await console.ended() == 0, console.told()
    return console.told()


async def in_order(site: Site) -> None:
    """The new model serves and is kept; nothing of the transaction is left."""
    assert (await site.serving()).model == "kimi-k2.5"
    assert await site.left_behind() == []
    assert (site.state / "last-good").read_text().strip()
    assert store_troubles(site.folder / "home-me") == []


@pytest.mark.parametrize("step", ["stop", "launch", "keep"])
async def test_a_killed_console_is_taken_up_where_it_was(site: Site, step: str) -> None:
    console = await site.redeploy()
    assert await console.until(step, "running"), console.told()
    weights = site.weights()
    before = await site.sh("systemctl", "show", "-p", "InvocationID", OURS)
    console.kill()
    await console.ended()
    told = await resumed(site)
    await in_order(site)
    assert "took over the stale lock of me@" in told
    assert site.weights() == weights, "nothing was fetched again"
    starts = [action for action in actions(site) if action.startswith("systemctl start")]
    assert len(starts) == 1, starts
    if step == "keep":
        assert await site.sh("systemctl", "show", "-p", "InvocationID", OURS) == before


async def test_a_loading_launch_is_followed_and_not_repeated(site: Site) -> None:
    console = await site.redeploy()
    assert await console.until_seen(lambda: any(e["stage"] in LOADING for e in console.of("stage")))
    before = await site.sh("systemctl", "show", "-p", "InvocationID,MainPID", OURS)
    console.kill()
    await console.ended()
    told = await resumed(site)
    await in_order(site)
    assert await site.sh("systemctl", "show", "-p", "InvocationID,MainPID", OURS) == before
    assert "going on with the downtime of run" in told
    release = json.loads((site.state / "releases/1.json").read_text())
    assert release["stopped"] == ["vllm-glm5.service"], "what the killed run had stopped is known to the next one"


async def test_an_interrupted_run_says_how_long_the_node_waits(site: Site) -> None:
    console = await site.redeploy()
    assert await console.until("launch", "running")
    console.terminate()
    assert await console.ended() == 130
    assert "without a console within 15:00 it goes back to what served before" in console.told()
    status = await site.console("status")
    await status.ended()
    assert "is armed" in str(status.events)
    await resumed(site)
    await in_order(site)


async def test_nobody_comes_back_so_the_node_goes_back(site: Site) -> None:
    site.deadman = 2
    console = await site.redeploy()
    assert await console.until("launch", "running")
    console.kill()
    await console.ended()
    async with asyncio.timeout(60):
        while site.record().get("state") != "restored":  # noqa: ASYNC110
            await asyncio.sleep(0.1)  # the node's own file; there is no console to ask
    assert (await site.serving()).model == "glm-5"
    assert await site.left_behind() == []
    lines = [line for line in site.audit() if line["operator"] == "relaunch-deadman"]
    assert [line["action"] for line in lines] == [
        "no console confirmed within 2 s: going back to what served before",
        "systemctl stop vllm-kimi.service",
        f"remove {site.root}/etc/systemd/system/vllm-kimi.service",
        "systemctl daemon-reload",
        "systemctl start vllm-glm5.service",
        "dead man's switch: vllm-glm5.service serves again on port 8000",
    ]
    assert lines[-1]["result"] == "restored"

    status = await site.console("status")
    await status.ended()
    assert "has acted" in str(status.events)
    site.deadman = 900
    again = await site.redeploy()
    assert await again.ended() == 0, again.told()
    assert "has acted" in again.told()
    await in_order(site)


async def test_a_link_that_stays_cut_ends_as_restored(site: Site) -> None:
    site.deadman = 3
    console = await site.redeploy()
    assert await console.until("launch", "running")
    await site.cut()
    async with asyncio.timeout(60):
        while site.record().get("state") != "restored":  # noqa: ASYNC110
            await asyncio.sleep(0.1)  # the node's own file, past the cut link
    await site.heal()
    assert await console.ended() == 11, console.told()
    assert "has acted" in console.told()
    assert (await site.serving()).model == "glm-5"
    assert await site.left_behind() == []
    ended = console.of("downtime")[-1]
    assert ended["state"] == "ended"
    assert ended["seconds"] > 0


async def test_a_console_that_lives_keeps_the_switch_from_acting(site: Site) -> None:
    site.deadman = 1
    (site.root / "pace.json").write_text(json.dumps({"load": 0.6, "tokens": 0.0}))  # a load of more than two seconds
    console = await site.redeploy()
    assert await console.ended() == 0, console.told()
    assert site.record() == {}
    await in_order(site)
    assert [action for action in actions(site) if action.startswith("deadman")] == [
        f"deadman arm {site.state}/deadman", f"deadman disarm {site.state}/deadman",
    ]  # fmt: skip


async def test_two_consoles_at_once(site: Site) -> None:
    first = await site.redeploy()
    assert await first.until("launch", "running")
    second = await site.console("--script", "redeploy", "--yes", who="other")
    watcher = await site.console("status", who="other")
    assert await second.ended() == 5
    assert "is locked by me@" in second.told()
    assert await watcher.ended() == 0
    assert "me@" in str(watcher.events)
    assert await first.ended() == 0, first.told()
    waiting = await site.console("--script", "redeploy", "--yes", "--lock-wait", "60", who="other")
    assert await waiting.ended() == 0, waiting.told()
    await in_order(site)
