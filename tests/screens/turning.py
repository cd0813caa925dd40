"""Opening a screen of the console in a test, and letting its source tell something else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from console.live import Glance
from screens.app import ConsoleApp


async def on(app: ConsoleApp, pilot: Any, screen: str, **given: Any) -> None:
    app.open(screen, **given)
    await pilot.pause()


def turn(app: ConsoleApp, glance: Glance) -> None:
    """The source tells something else from now on."""
    app.source.shown = replace(glance, version=app.source.shown.version + 1)  # type: ignore[attr-defined]
    app.tick(again=True)
