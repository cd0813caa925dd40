"""An operator's seat before the console on a practice node: keys, and waits that end when text is on the screen.

The app, its live source and its engine are those of `relaunch --rehearse`; only the terminal is Textual's headless one.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from console.deploy.store import open_store, state_folder
from console.rehearsal import practice as rehearsal
from console.settings import Settings
from screens.app import ConsoleApp
from screens.session import Opening
from tests.screens.golden import screen_text

CAP_SECONDS = 200.0


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
            await asyncio.sleep(0.25)
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
                    await seat.wait(r"83\.0")  # GiB of each GPU: the old model is up
                    yield seat
            finally:
                await app.leave_live()
    finally:
        await rehearsal.stop(state_folder() / "rehearsal")
