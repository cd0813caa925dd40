"""Whole flows by keys alone over a real SSH server: the practice node, from the first screen to what serves afterwards.

See `tests.screens.seat` for what is real in it.
"""

from __future__ import annotations

import json
import re

import pytest

from console.events import StepChanged
from tests.screens.seat import seated

pytestmark = pytest.mark.timeout(600)
HURRIED = {"load": 0.3, "tokens": 0.0, "install": 0.0, "hub": 0.0}


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAUNCH_PRACTICE_PACE", json.dumps(HURRIED))


async def test_plan_redeploy_filter_throughput_replay_and_rollback() -> None:
    async with seated() as seat:
        await seat.press("p")
        await seat.wait("No plan yet|verdict")
        await seat.press("p")
        shown = await seat.wait("verdict")
        assert "nothing has been changed" in shown
        await seat.press("q")
        await seat.wait(r"Plan ─", gone=True)

        await seat.wait(r"^ D redeploy")
        await seat.press("D")
        shown = await seat.wait(r"\[ Cancel \]")
        assert "Redeploy?" in shown
        await seat.press("enter")  # Cancel has the focus: nothing begins
        await seat.wait(r"\[ Cancel \]", gone=True)
        assert not seat.app.source.glance().running
        await seat.wait(r"^ D redeploy")
        await seat.press("D")
        await seat.wait(r"\[ Cancel \]")
        await seat.press("l", "enter")
        await seat.wait(r"✓ keep")
        shown = await seat.wait(r"last good +release 1")
        assert "✗" not in shown
        assert re.search(r"serves +vllm-kimi\.service  active", shown)
        assert re.search(r"downtime was [\d.]+s", shown)

        await seat.press("slash")
        await seat.wait("words include")
        await seat.type("shards !Completed")
        await seat.press("enter")
        shown = await seat.wait(r"filter: shards")
        assert "shards: " not in shown  # no progress line
        assert "checkpoint shards" in shown or "No line" in shown or "nothing" in shown.lower(), shown
        await seat.press("x")
        await seat.wait(r"filter: none")
        await seat.press("shift+tab", "shift+tab")

        await seat.press("t")
        shown = await seat.wait(r"Throughput ─ run 000\d")
        assert "bounds kept" in shown
        assert "last good release's own" in shown  # these figures are the last good release's
        await seat.press("q")

        await seat.press("r")
        shown = await seat.wait(r"✓ +0 done +0002")
        await seat.press("enter")
        await seat.wait("What happened")
        await seat.press("e")
        shown = await seat.wait(r"✓ keep")
        assert "release 1" in shown
        await seat.press("q", "q")

        await seat.press("B")
        shown = await seat.wait(r"\[ Cancel \]")
        assert "Rollback?" in shown
        await seat.press("l", "enter")
        await seat.wait(r"✓ rollback")
        await seat.wait(r"serves +vllm-glm5\.service  active")
        await seat.press("q")  # nothing runs: the console leaves at once


async def test_a_failure_to_its_cause_and_its_fix() -> None:
    async with seated("oom", size=(80, 24)) as seat:
        await seat.wait(r"^ D redeploy")
        await seat.press("D")
        await seat.wait(r"\[ Cancel \]")
        await seat.press("l", "enter")
        shown = await seat.wait("F fix and relaunch")
        assert "✗ launch failed" in shown
        assert "OutOfMemoryError" in shown

        await seat.press("c")
        shown = await seat.wait("First cause ─ run 0001")
        assert "torch.OutOfMemoryError: CUDA out of memory" in shown
        assert "Worker_TP" in shown
        await seat.press("q")

        await seat.press("F")
        shown = await seat.wait("Redeploy with the fix")
        assert "gpu-memory-utilization" in shown
        await seat.press("l", "enter")
        await seat.wait(r"✓ keep|done in")
        serving = seat.app.source.glance().run
        assert serving.ended is not None
        assert serving.ended.code == 0
        told = seat.app.source.store.events(serving.run)
        assert [event.state for event in told if isinstance(event, StepChanged) and event.step == "launch"] == [
            "checking", "running", "verifying", "done",
        ]  # fmt: skip
        await seat.press("r")
        shown = await seat.wait(r"0002")
        assert re.search(r"11 restored +0001", shown)
