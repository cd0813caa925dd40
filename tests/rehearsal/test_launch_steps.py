"""Launch, ready, throughput and keep on the practice node: what each proves, how each fails, and the way back."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest

from console.deploy import ready, start, steps
from console.deploy.fix import fix_for
from console.deploy.release import last_good, releases, restore_release, serves_again
from console.deploy.run import Walk
from console.errors import BelowGate, ExitCode, Nonsense, NotReady, RelaunchError, Restored, UnitFailed
from console.events import CauseFound, Downtime, Measured, Noted, Progressed, StageReached
from console.node import journal, systemd
from console.profile.model import Gate
from console.rehearsal import faults
from tests.rehearsal import launch_node as lab

OURS = "vllm-kimi.service"
DOWNTIME_STEPS = ("stop", "drain", "launch", "ready", "throughput", "keep")


async def test_a_release_is_launched_proved_measured_and_kept(tmp_path: Path) -> None:
    async with lab.deployment(tmp_path / "p") as node:
        told = await node.bring_about("launch", "ready", "throughput", "keep")
        assert "119/119 shards loaded" in told["launch"]
        assert re.search(r"health 200, model kimi-k2\.5, port 8000 owned by pid \d+ of vllm-kimi", told["ready"])
        assert "Paris" in told["ready"]
        assert "bounds kept" in told["throughput"]
        assert "release 1 is the last good one, read back identical, 2 load points" in told["keep"]
        assert [event.stage for event in node.of(StageReached)][-1] == "ready"
        assert any(event.total == 119 for event in node.of(Progressed))
        measured = node.of(Measured)
        assert [point.concurrency for point in measured] == [1, 4]
        assert all(point.failed == 0 and point.ttft_ms["p99"] > 0 for point in measured)
        assert [event.state for event in node.of(Downtime)] == ["ended"]

        good = last_good(node.ctx.facts)
        assert good is not None
        assert good.baseline == tuple(measured)
        assert good.stopped == (lab.OLD,)
        assert good.disabled == (lab.OLD,)
        assert good.overlay, "the KV patch made an overlay, and its hashes are kept"
        assert (await node.unit(lab.OLD)).enabled == "disabled"
        assert (await node.unit(OURS)).enabled == "enabled"

        before = await node.unit(OURS)
        for name in DOWNTIME_STEPS:
            assert await node.needed(name) is None, name
        assert (await node.unit(OURS)).invocation == before.invocation


async def test_a_server_that_died_behind_systemds_back_is_noticed(tmp_path: Path) -> None:
    async with lab.deployment(tmp_path / "p") as node:
        await node.bring_about("launch", "ready", "keep")
        kept = await node.unit(OURS)
        await node.systemctl("restart", OURS)
        await node.ctx.refresh()
        assert await node.needed("keep")
        assert "follow" in (await node.needed("launch") or "")
        await node.bring_about("launch", "ready", "keep")
        now = await node.unit(OURS)
        assert now.invocation != kept.invocation
        good = last_good(node.ctx.facts)
        assert good is not None
        assert good.invocation == now.invocation


FAULTS = {
    "fp8-kv": (UnitFailed, "attention_backend_unsupported_kv_dtype", "No valid attention backend"),
    "oom": (UnitFailed, "gpu_oom", "CUDA out of memory"),
    "bad-flag": (UnitFailed, "bad_flag", "unrecognized arguments"),
    "never-starts": (UnitFailed, "", "never started"),
    "hang": (NotReady, "hang_nccl", "hung in stage nccl_init: nothing moved for 1.5s (GPUs"),
    "port-in-use": (UnitFailed, "port_in_use", "Address already in use"),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_launch_that_fails_says_why_and_loops_no_more(fault: str, tmp_path: Path) -> None:
    kind, category, words = FAULTS[fault]
    profile = lab.profile_for(tmp_path)
    stalls = profile.ready.model_copy(update={"stalls": {**profile.ready.stalls, "nccl_init": 1.5}})
    profile = profile.model_copy(update={"ready": stalls})
    async with lab.deployment(tmp_path / "p", faults=[fault], profile=profile) as node:
        node.ctx.options = {"evidence_dir": tmp_path / "evidence"}
        with pytest.raises(RelaunchError) as caught:
            await node.bring_about("launch")
        assert type(caught.value) is kind
        assert words in caught.value.message
        assert caught.value.remedy
        causes = node.of(CauseFound)
        assert len({event.text for event in causes}) == 1
        assert causes[0].category.startswith(category)
        assert causes[0].remedy
        state = await node.unit(OURS)
        assert state.sub != "auto-restart"
        assert systemd.is_up(state) == (fault == "hang"), "a hung server is left for a look; nothing is left to loop"
        kept = json.loads((tmp_path / "evidence/cause.json").read_text())
        assert kept["text"] == causes[0].text
        assert (tmp_path / "evidence/journal.log").read_text()
        assert (tmp_path / "evidence/unit.service").read_text() == node.ctx.facts.units[OURS].text
        assert [release.state for release in releases(await node.ctx.refresh())] == ["candidate"]


async def test_nonsense_is_shown_and_named(tmp_path: Path) -> None:
    async with lab.deployment(tmp_path / "p", faults=["garbage"]) as node:
        with pytest.raises(Nonsense) as caught:
            await node.bring_about("launch", "ready")
        assert "!!!!" in caught.value.message
        assert "linear-backend" in caught.value.remedy
        assert not node.of(Downtime)


async def test_a_slow_server_is_below_the_gate(tmp_path: Path) -> None:
    profile = lab.profile_for(tmp_path)
    load = profile.throughput.model_copy(
        update={"points": profile.throughput.points[:1], "gates": (Gate(concurrency=1, min_output_tokens_per_s=1e6),)}
    )
    profile = profile.model_copy(update={"throughput": load})
    async with lab.deployment(tmp_path / "p", profile=profile) as node:
        with pytest.raises(BelowGate) as caught:
            await node.bring_about("launch", "ready", "throughput")
        assert "at least 1e+06" in caught.value.message
        assert caught.value.code is ExitCode.BELOW_GATE
        assert last_good(node.ctx.facts) is None


async def test_a_start_under_way_is_followed_and_not_repeated(tmp_path: Path) -> None:
    async with lab.deployment(tmp_path / "p") as node:
        begun = await start.begin(node.ctx, OURS)
        async with systemd.watch_unit(node.node, OURS) as states:
            async for state in states:
                if state.active == "active" and state.invocation != begun.former:
                    break
        await node.ctx.refresh()
        assert "follow" in (await node.needed("launch") or "")
        await node.bring_about("launch", "ready")
        assert (await node.unit(OURS)).invocation == state.invocation
        assert node.of(StageReached)[-1].stage == "ready"


async def test_a_measured_point_is_not_measured_again_by_the_same_run(tmp_path: Path) -> None:
    async with lab.deployment(tmp_path / "p") as node:
        await node.bring_about("launch", "ready", "throughput")
        first = node.of(Measured)
        node.ctx.found.pop("throughput")
        await node.bring_about("throughput")
        again = node.of(Measured)[len(first) :]
        assert [point.ttft_ms for point in again] == [point.ttft_ms for point in first]


async def test_a_link_lost_while_starting_starts_nothing_twice(tmp_path: Path) -> None:
    async with lab.deployment(tmp_path / "p") as node:
        faults.write(node.practice.root / "faults.json", faults.parse(["drop:launch"]))
        await Walk(node.ctx, [steps.step(name) for name in ("launch", "ready", "keep")], serves_again).walk()
        assert any("looking again at launch" in event.text for event in node.of(Noted))
        async with journal.read(node.node, OURS) as entries:
            started = [entry async for entry in entries if entry.message.startswith("Starting ")]
        assert len(started) == 1
        assert last_good(node.ctx.facts) is not None


async def test_a_failed_launch_brings_the_old_model_back(tmp_path: Path) -> None:
    async with lab.deployment(tmp_path / "p", faults=["oom"], stopped=False) as node:
        before = await node.unit(lab.OLD)
        walk = Walk(node.ctx, [steps.step(name) for name in DOWNTIME_STEPS], serves_again)
        with pytest.raises(Restored) as caught:
            await walk.walk()
        assert "CUDA out of memory" in caught.value.message
        assert f"{lab.OLD} serves again: health 200, model glm-5" in caught.value.message
        began, ended = node.of(Downtime)
        assert (began.state, ended.state) == ("started", "ended")
        assert ended.seconds > 0
        after = await node.unit(lab.OLD)
        assert after.active == "active"
        assert after.invocation != before.invocation
        assert after.enabled == "enabled"
        assert not systemd.is_up(await node.unit(OURS))
        assert [release.state for release in releases(await node.ctx.refresh())] == ["failed"]


async def test_the_remedy_that_triage_names_mends_the_launch(tmp_path: Path) -> None:
    async with lab.deployment(tmp_path / "p", faults=["bad-flag"]) as node:
        with pytest.raises(UnitFailed):
            await node.bring_about("launch")
        edit = fix_for(node.ctx.profile, node.ctx.found["diagnosis"].fix)
        assert edit is not None
        assert edit.name.startswith("drop-flag:--")
        (node.practice.root / "faults.json").unlink()  # this vLLM has one flag too few, not all of them
        node.ctx.profile = edit.profile
        node.ctx.found.pop("launch")
        await node.ctx.refresh()
        await node.bring_about("unit", "launch", "ready")


async def test_rollback_goes_to_what_served_before_and_back(tmp_path: Path) -> None:
    async with lab.deployment(tmp_path / "p", stopped=False) as node:
        await node.bring_about(*DOWNTIME_STEPS)
        proof = await restore_release(node.ctx)
        assert f"{lab.OLD} serves again" in proof
        assert (await node.unit(lab.OLD)).enabled == "enabled"
        ours = await node.unit(OURS)
        assert not systemd.is_up(ours)
        assert ours.enabled == "disabled"
        assert last_good(await node.ctx.refresh()) is None

        node.ctx.options = {"release": "1"}
        assert f"{OURS} serves again" in await restore_release(node.ctx)
        again = await node.ctx.refresh()
        assert last_good(again) is not None
        assert again.units[OURS].enabled == "enabled"
        assert again.units[lab.OLD].enabled == "disabled"
        assert [await node.needed(name) for name in DOWNTIME_STEPS] == [None] * 6


async def test_an_old_process_on_the_port_is_not_taken_for_the_new_one(tmp_path: Path) -> None:
    async with lab.deployment(tmp_path / "p", stopped=False) as node:
        with pytest.raises(NotReady) as caught:
            await ready.pass_gate(node.ctx, ready.wanted(node.ctx), ())
        assert "serves glm-5, not kimi-k2.5" in caught.value.message
        wrong = ready.Server(OURS, 8000, "glm-5")
        with pytest.raises(NotReady):
            await ready.pass_gate(node.ctx, wrong, ())


async def test_waiting_for_health_ends_when_the_unit_goes(tmp_path: Path) -> None:
    async with lab.deployment(tmp_path / "p") as node:
        with pytest.raises(NotReady, match="before it answered"):
            await asyncio.wait_for(ready.until_healthy(node.ctx, ready.wanted(node.ctx)), 30)
