"""Whole flows by keys alone over a real SSH server: the practice node, from the first screen to what serves afterwards.

The app, its live source and its engine are those of `relaunch --rehearse`; only the terminal is Textual's headless one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from console.deploy.store import open_store, state_folder
from console.rehearsal import practice as rehearsal
from console.settings import Settings
from screens.app import ConsoleApp
from screens.session import Opening
from tests.screens.golden import screen_text

pytestmark = pytest.mark.timeout(240)
CAP_SECONDS = 100.0
HURRIED = {"load": 0.0, "tokens": 0.0, "install": 0.0, "hub": 0.0}


@dataclass
class Seat:
    """An operator before the console."""

    app: ConsoleApp
    pilot: Any

    def text(self) -> str:
        return screen_text(self.app)

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)

    async def type(self, text: str) -> None:
        await self.pilot.press(*({" ": "space"}.get(char, char) for char in text))

    async def wait(self, pattern: str, *, gone: bool = False) -> str:
        """The screen, as soon as `pattern` is on it, or with `gone` is not; it is redrawn by the app's own timer."""
        until = time.monotonic() + CAP_SECONDS
        while (re.search(pattern, text := self.text(), re.MULTILINE) is None) is not gone:
            assert time.monotonic() < until, f"{pattern!r}, {gone=}, was not met; the screen:\n{text}"
            await asyncio.sleep(0.1)
        return text


@asynccontextmanager
async def seated(*faults: str, size: tuple[int, int] = (140, 40)) -> AsyncIterator[Seat]:
    """The console on a practice node of its own, which is stopped afterwards."""
    options = argparse.Namespace(rehearse=True, fault=list(faults))
    try:
        with open_store() as store:
            opening = Opening(options, Settings.read(os.environ), store)
            live = opening.practice()
            app = ConsoleApp(live, opening=opening)
            app.strict = True
            opening.prompts.app = app
            await app.attend(live)
            try:
                async with app.run_test(size=size) as pilot:
                    seat = Seat(app, pilot)
                    await seat.wait(r"link \d+ ms")
                    await seat.wait("vllm-glm5")
                    yield seat
            finally:
                await app.leave_live()
    finally:
        await rehearsal.stop(state_folder() / "rehearsal")


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
        shown = await seat.wait(r"serves +vllm-kimi\.service  active")
        assert "✗" not in shown
        assert re.search(r"last good +release 1", shown)
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
        await seat.press("r")
        shown = await seat.wait(r"0002")
        assert re.search(r"11 restored +0001", shown)
