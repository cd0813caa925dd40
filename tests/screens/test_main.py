"""The main screen in the states an operator meets, at both sizes and in both sets of signs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from console.live import Glance
from console.logs.spool import Spool
from tests.screens import glances
from tests.screens.conftest import Golden, MakeApp
from tests.screens.golden import SIZES, screen_text

STATES: dict[str, Callable[[], Glance]] = {
    "idle": glances.idle,
    "loading": glances.loading,
    "failed": glances.failed,
    "restoring": glances.restoring,
    "done": glances.finished,
    "stale": glances.stale,
    "unknown": glances.unknown,
}


@pytest.mark.parametrize("ascii_only", [False, True], ids=["unicode", "ascii"])
@pytest.mark.parametrize("size", SIZES, ids=["140x40", "80x24"])
@pytest.mark.parametrize("name", STATES)
async def test_golden(
    name: str, size: tuple[int, int], ascii_only: bool, make_app: MakeApp, golden: Golden, spool: Spool
) -> None:
    spool.append(glances.LOG.encode(), now=glances.T0)
    app = make_app(STATES[name](), ascii=ascii_only)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        signs = "ascii" if ascii_only else "unicode"
        golden(f"main-{name}-{size[0]}x{size[1]}-{signs}", app)


@pytest.mark.parametrize("size", [(40, 15), (20, 6), (200, 60), (60, 20), (99, 24)])
@pytest.mark.parametrize("name", STATES)
async def test_any_size_is_drawn_without_a_crash(
    name: str, size: tuple[int, int], make_app: MakeApp, spool: Spool
) -> None:
    spool.append(glances.LOG.encode(), now=glances.T0)
    app = make_app(STATES[name]())
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        await pilot.resize_terminal(40, 15)
        await pilot.pause()
        assert screen_text(app).strip()
