"""A way back, whole: by itself after a failed launch, by the verb to a release that is looked at before anything stops."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from console.deploy.release import last_good, restore_release
from console.errors import Refused
from console.node import systemd
from tests.field_practice import practice_site
from tests.rehearsal import launch_node as lab

pytestmark = pytest.mark.timeout(180)
OURS = "vllm-kimi.service"


@contextmanager
def changed(path: str) -> Iterator[None]:
    """The file says something else for a while."""
    text = Path(path).read_text()
    Path(path).chmod(0o644)
    Path(path).write_text(text + " ")
    yield
    Path(path).write_text(text)


@contextmanager
def away(path: str) -> Iterator[None]:
    """The folder has another name for a while."""
    Path(path).rename(f"{path}.away")
    yield
    Path(f"{path}.away").rename(path)


async def test_a_failed_launch_goes_back_by_itself_and_everything_is_written_down(tmp_path: Path) -> None:
    async with practice_site(tmp_path, broken=["oom"]) as site:
        console = await site.redeploy()
        assert await console.ended() == 11, console.told()
        assert (await site.serving()).model == "glm-5"
        assert await site.left_behind() == []

        actions = [line["action"] for line in site.audit()]
        wanted = ["lock acquire for redeploy", f"deadman arm {site.state}/deadman", "systemctl stop vllm-glm5.service",
                  "systemctl start --no-block vllm-kimi.service", "systemctl start vllm-glm5.service",
                  f"deadman disarm {site.state}/deadman", "lock release for redeploy"]  # fmt: skip
        assert [action for action in actions if action in wanted] == wanted
        assert all(line["run"] == "0001" and line["result"] for line in site.audit())

        (ended,) = console.of("run-ended")
        assert ended["downtime"] > 0
        assert f"; downtime {ended['downtime']:.1f}s" in ended["text"]
        kept = tmp_path / "home-me/state/relaunch/evidence/0001"
        assert {"journal.log", "cause.json", "unit.service", "gpus.json", "kernel.log", "config.json", "run.json",
                "gpu-memory.jsonl"} <= {path.name for path in kept.iterdir()}  # fmt: skip
        samples = [json.loads(line)["used"] for line in (kept / "gpu-memory.jsonl").read_text().splitlines()]
        assert len(samples) > 3
        assert max(max(used) for used in samples) > min(min(used) for used in samples)

        report = await site.console("report", "1", "--out", str(tmp_path / "page.html"))
        assert await report.ended() == 0
        page = (tmp_path / "page.html").read_text()
        assert "CUDA out of memory" in page
        assert "<polyline" in page
        runs = await site.console("runs")
        await runs.ended()
        assert runs.events[0]["downtime"] == ended["downtime"]


async def test_a_release_that_is_not_whole_is_refused_before_anything_stops(tmp_path: Path) -> None:
    async with lab.deployment(tmp_path / "p", stopped=False) as node:
        await node.bring_about("stop", "drain", "launch", "ready", "keep")
        before = await node.unit(OURS)
        good = last_good(await node.ctx.refresh())
        assert good is not None
        node.ctx.options = {"release": "1"}

        config = next(path for path in good.overlay if path.endswith("/config.json"))
        with changed(config), pytest.raises(Refused, match=r"config\.json is not what was served"):
            await restore_release(node.ctx)
        with away(good.venv), pytest.raises(Refused, match="there is no vLLM in"):
            await restore_release(node.ctx)

        after = await node.unit(OURS)
        assert (after.active, after.invocation) == ("active", before.invocation)
        assert not systemd.is_up(await node.unit(lab.OLD))
