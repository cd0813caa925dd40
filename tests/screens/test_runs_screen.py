"""Throughput, history and replay by keys."""

from __future__ import annotations

import pytest

from console.deploy.store import Store
from console.errors import RelaunchError
from console.state import fold
from screens.glyphs import ASCII, UNICODE
from screens.known_nodes import known_nodes
from screens.replay import ReplayScreen, Tape
from screens.runs import RunList, history, outcome
from screens.source import Moment
from screens.widgets.checklist import Checklist
from screens.widgets.plots import Bar, plot
from tests.screens import other_samples as samples
from tests.screens.conftest import MakeApp
from tests.screens.golden import screen_text
from tests.screens.test_other_screens import fill, home, put_events, put_run
from tests.screens.turning import on, turn

__all__ = ["home"]


async def test_t_measures(make_app: MakeApp) -> None:
    app = make_app(samples.base(), first="status")
    async with app.run_test(size=(100, 30)) as pilot:
        await on(app, pilot, "throughput")
        await pilot.press("t")
        await pilot.pause()
        [(script, _)] = app.source.started  # type: ignore[attr-defined]
        assert script.name == "bench"


def test_a_plot_marks_what_was_and_never_draws_unknown_as_nothing() -> None:
    bars = [Bar("1", 10.0, 20.0, 40.0), Bar("8", None), Bar("32", 0.0)]
    rows = [row.text for row in plot(ASCII, "t", bars, 40)]
    assert len({len(row) for row in rows[1:]}) == 1
    assert rows[1].index("#") < rows[1].index(".") < rows[1].index("|")
    assert rows[2].strip().startswith("8 ?")
    assert rows[2].rstrip().endswith("?")
    assert "?" not in rows[3]
    assert set(plot(UNICODE, "t", [Bar("1", 1.0), Bar("2", 100.0)], 60)[1].text) & set("▏▎▍▌▋▊▉")


async def test_enter_replays_the_chosen_run(make_app: MakeApp, store: Store) -> None:
    fill(store)
    app = make_app(samples.base(), first="status")
    async with app.run_test(size=(140, 40)) as pilot:
        await on(app, pilot, "runs")
        await pilot.press("j", "enter")
        await pilot.pause()
        assert isinstance(app.screen, ReplayScreen)
        assert "run 0141 redeploy" in screen_text(app)


async def test_a_run_that_begins_or_ends_is_listed_at_once(make_app: MakeApp, store: Store) -> None:
    app = make_app(samples.base(), first="status")
    async with app.run_test(size=(140, 40)) as pilot:
        await on(app, pilot, "runs")
        assert "No run yet" in screen_text(app)
        run = put_run(store, "redeploy", "gpu1", samples.WALL - 5, None)
        turn(app, samples.base(run=fold([samples.started(run)]), running=True))
        await pilot.pause()
        assert "runs now" in screen_text(app)


async def test_the_choice_stays_with_its_run_when_another_comes(make_app: MakeApp, store: Store) -> None:
    fill(store)
    app = make_app(samples.base(), first="status")
    async with app.run_test(size=(140, 40)) as pilot:
        await on(app, pilot, "runs")
        await pilot.press("j", "j")
        chosen = app.screen.query_one(RunList).chosen
        put_run(store, "plan", "gpu1", samples.WALL, (0, "done"))
        await pilot.press("r")
        await pilot.pause()
        assert app.screen.query_one(RunList).chosen == chosen
        await pilot.press("G")
        assert app.screen.query_one(RunList).chosen == "0001"
        await pilot.press("g")
        assert app.screen.query_one(RunList).chosen == "0007"


async def test_a_dry_run_is_called_a_plan_and_is_no_deployment(make_app: MakeApp, store: Store) -> None:
    put_events(store, samples.plan_events())
    app = make_app(samples.base(), first="status")
    async with app.run_test(size=(140, 40)) as pilot:
        await on(app, pilot, "runs")
        assert "run 0001 plan" in screen_text(app)
    [node] = [item for item in known_nodes(store)[0] if item.name == "local"]
    assert node.good is None
    assert history(store, 9, {})[0].verb == "plan"


async def test_a_history_that_cannot_be_read_is_said(
    make_app: MakeApp, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(**_: object) -> None:
        raise RelaunchError("the database is locked")

    monkeypatch.setattr(store, "runs", broken)
    app = make_app(samples.base(), first="status")
    async with app.run_test(size=(140, 40)) as pilot:
        await on(app, pilot, "runs")
        assert "the database is locked" in screen_text(app)


@pytest.mark.parametrize(
    ("code", "sign", "word"),
    [
        (0, "✓", "done"),
        (11, "!", "restored"),
        (12, "✗", "NOT restored"),
        (130, "!", "interrupted"),
        (1, "✗", "failed"),
        (99, "✗", "failed"),
    ],
)
def test_every_end_has_a_sign_and_a_word(code: int, sign: str, word: str, store: Store) -> None:
    put_run(store, "redeploy", "gpu1", 0.0, (code, "x"))
    assert outcome(store.runs()[0], UNICODE, running=False)[:2] == (sign, word)


def test_a_tape_shows_what_was_shown_then() -> None:
    events = samples.failed_events()
    tape = Tape(events)
    for at in range(len(events) + 1):
        tape.to(at)
        assert tape.snapshot == fold(events[:at])
    tape.step(-5)
    assert tape.snapshot == fold(events[:-5])
    tape.to(0)
    tape.turn(0.0)
    assert tape.at == 2  # the two that came at once
    tape.turn(12.0)
    assert tape.snapshot == fold(event for event in events if event.time <= events[0].time + 12)
    tape.turn(1e9)
    assert tape.done
    assert tape.clock == events[-1].time


def test_an_empty_tape_is_at_its_end() -> None:
    tape = Tape(())
    tape.turn(5.0)
    tape.step(-1)
    assert tape.done


async def test_a_replay_plays_pauses_and_changes_its_speed(make_app: MakeApp, store: Store) -> None:
    events = samples.failed_events()
    run = put_events(store, events)
    app = make_app(samples.base(), first="status")
    clock = [samples.MONO]
    app.moment = lambda: Moment(samples.WALL, clock[0])
    async with app.run_test(size=(140, 40)) as pilot:
        await on(app, pilot, "replay", run=run)
        screen = app.screen
        assert isinstance(screen, ReplayScreen)

        def after(seconds: float) -> Tape:
            clock[0] += seconds
            screen._turn()
            return screen._tape

        begin = events[0].time
        assert after(2.0).clock == begin + 2
        await pilot.press("f", "f")
        assert after(2.0).clock == begin + 22
        await pilot.press("f", "f", "f")
        assert "60×" in screen_text(app)
        await pilot.press("space")
        assert after(50.0).clock == begin + 22
        await pilot.press("space", "s", "s", "s", "s")
        assert after(1.0).clock == begin + 23
        assert "1×" in screen_text(app)
        await pilot.press("e")
        assert screen._tape.snapshot == fold(events)
        await pilot.press("left")
        assert not screen._tape.done
        at = screen._tape.at
        await pilot.press("right")
        assert screen._tape.at > at
        await pilot.press("b")
        assert screen._tape.clock == begin
        assert screen.query_one(Checklist) is not None


async def test_a_run_without_events_and_one_that_is_not_there_say_so(make_app: MakeApp, store: Store) -> None:
    empty = put_run(store, "redeploy", "gpu1", samples.WALL, None)
    app = make_app(samples.base(), first="status")
    async with app.run_test(size=(100, 30)) as pilot:
        await on(app, pilot, "replay", run=empty)
        assert "wrote down nothing" in screen_text(app)
        await pilot.press("q")
        await on(app, pilot, "replay", run="nonsense")
        assert "cannot be replayed" in screen_text(app)
        await pilot.press("space", "e", "left", "f", "b")


async def test_the_newest_run_is_replayed_when_none_is_named(make_app: MakeApp, store: Store) -> None:
    put_events(store, samples.failed_events())
    app = make_app(samples.base(), first="status")
    async with app.run_test(size=(100, 30)) as pilot:
        await on(app, pilot, "replay")
        assert "run 0141" in screen_text(app)
