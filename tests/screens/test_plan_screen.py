"""The plan by keys: made, run after a question, its fit, its age."""

from __future__ import annotations

import pytest

from console.checkpoint.fit import Alternative, Fit
from console.events import Event, StepChanged
from console.state import fold
from screens import plan as plan_screen
from screens.dialogs import Dialog
from screens.source import Moment
from tests.screens import other_samples as samples
from tests.screens.conftest import MakeApp
from tests.screens.golden import screen_text
from tests.screens.test_other_screens import home
from tests.screens.turning import on, turn

__all__ = ["home"]


async def test_p_makes_a_plan_and_changes_nothing(make_app: MakeApp) -> None:
    app = make_app(samples.base(), first="status")
    async with app.run_test(size=(100, 30)) as pilot:
        await on(app, pilot, "plan")
        assert "No plan yet" in screen_text(app)
        await pilot.press("p")
        await pilot.pause()
        [(script, options)] = app.source.started  # type: ignore[attr-defined]
        assert (script.name, options.dry_run) == ("redeploy", True)


async def test_enter_runs_the_plan_after_a_question_and_then_leaves(make_app: MakeApp) -> None:
    app = make_app(samples.plan(), first="status")
    async with app.run_test(size=(100, 30)) as pilot:
        await on(app, pilot, "plan")
        await pilot.press("enter")
        await pilot.pause()
        assert isinstance(app.screen, Dialog)
        await pilot.press("enter")  # Cancel has the focus
        await pilot.pause()
        assert app.source.started == []  # type: ignore[attr-defined]
        await pilot.press("enter")
        await pilot.pause()
        await pilot.press("l", "enter")
        await pilot.pause()
        [(script, options)] = app.source.started  # type: ignore[attr-defined]
        assert (script.name, options.dry_run) == ("redeploy", False)
        turn(app, samples.base(run=fold([samples.started("0144")]), running=True))
        await pilot.pause()
        assert not isinstance(app.screen, plan_screen.PlanScreen)


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([], "there is no plan to run yet"),
        (samples.plan_events(refused=True), "the plan was refused"),
        (samples.failed_events(), "there is no plan to run yet"),
    ],
)
async def test_enter_without_a_good_plan_says_why_not(events: list[Event], words: str, make_app: MakeApp) -> None:
    app = make_app(samples.base(run=fold(events)), first="status")
    async with app.run_test(size=(100, 30)) as pilot:
        await on(app, pilot, "plan")
        await pilot.press("enter")
        await pilot.pause()
        assert words in screen_text(app)
        assert not isinstance(app.screen, Dialog)


async def test_the_fit_stands_in_the_plan(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    gib = float(1 << 30)
    found = Fit(
        gpu=int(95.6 * gib), utilization=0.93, budget=88.9 * gib, weights=67.5 * gib, reserve=4.1 * gib, kv=17.2 * gib,
        dtype="bfloat16", cost=None, tokens=262_400, wanted=131_072, longest=262_400, requests=2.0, loads=True, why="fits",
        alternatives=(Alternative("FP8 KV", 380_000),), notes=(),
    )  # fmt: skip
    monkeypatch.setattr(plan_screen, "fit_of", lambda facts, profile: found)
    app = make_app(samples.plan(), first="status")
    async with app.run_test(size=(120, 60)) as pilot:
        await on(app, pilot, "plan")
        text = screen_text(app)
        assert "✓ fits" in text
        assert "67.5 GiB" in text
        assert "131,072 wanted" in text
        assert "380,000 tokens" in text


def test_the_fit_of_facts_without_a_config_is_unknown() -> None:
    assert plan_screen.fit_of(None, samples.PROFILE) is None
    assert plan_screen.fit_of(samples.facts(), samples.PROFILE) is None


async def test_a_plan_tells_its_age_and_a_fit_that_fails_is_unknown(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ValueError("a config that nobody has seen")

    monkeypatch.setattr(plan_screen, "fit_of", broken)
    app = make_app(samples.plan(), first="status")
    app.moment = lambda: Moment(samples.WALL + 7200, samples.MONO)
    async with app.run_test(size=(100, 30)) as pilot:
        await on(app, pilot, "plan")
        assert "made 2 h ago" in screen_text(app)
        assert "fit      ?" in screen_text(app)


def test_a_step_that_never_ran_is_no_need() -> None:
    run = fold([samples.started("0001", dry=True), StepChanged(time=1.0, step="inspect", state="satisfied")])
    assert plan_screen._needed(run) == []
