"""What keys do to a node: asked first where it destroys, started as a script, recorded, and saved as a script file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from textual.pilot import Pilot

from console.deploy.lock import Owner
from console.deploy.script import Do, load_script
from console.deploy.store import Store
from console.events import RunEnded, RunStarted
from console.live import Glance
from screens.app import ConsoleApp
from screens.command_line import obey
from screens.dialogs import Question, Typed
from screens.source import FixedSource
from tests.screens import glances
from tests.screens import other_samples as samples
from tests.screens.conftest import NOW, MakeApp
from tests.screens.golden import screen_text


def fixed(app: ConsoleApp) -> FixedSource:
    assert isinstance(app.source, FixedSource)
    return app.source


async def until(pilot: Pilot[int], met: Callable[[], bool]) -> None:
    """Let the app go on until `met`."""
    for _ in range(600):
        if met():
            return
        await pilot.pause(0.05)
    raise AssertionError(f"this was not met; the screen:\n{screen_text(pilot.app)}")  # type: ignore[arg-type]


def serving() -> Glance:
    """The profile's unit is up, by the facts."""
    return samples.base(facts=samples.facts(), facts_seen=NOW.mono - 1)


async def test_redeploy_asks_and_cancel_has_the_focus(make_app: MakeApp) -> None:
    app = make_app(glances.idle())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("D")
        await pilot.pause()
        assert isinstance(app.screen, Question)
        await pilot.press("enter")
        await pilot.pause()
        assert fixed(app).started == []
        await pilot.press("D", "l", "enter")
        await pilot.pause()
        ((script, options),) = fixed(app).started
        assert script == load_script("redeploy")
        assert not options.fix


async def test_escape_and_q_cancel_a_question(make_app: MakeApp) -> None:
    app = make_app(glances.idle())
    async with app.run_test(size=(80, 24)) as pilot:
        for key in ("escape", "q"):
            await pilot.press("D", key)
            await pilot.pause()
            assert type(app.screen).__name__ == "MainScreen"
        assert fixed(app).started == []


async def test_a_production_node_wants_its_name_typed(make_app: MakeApp) -> None:
    app = make_app(glances.failed(), production=True)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("B")
        await pilot.pause()
        assert isinstance(app.screen, Typed)
        await pilot.press("l", "enter")
        await pilot.pause()
        assert isinstance(app.screen, Typed), "the deed is not done without the name"
        await pilot.press(*"gpu2", "enter")
        await pilot.pause()
        assert fixed(app).started == []
        await pilot.press("backspace", "1", "enter")
        await pilot.pause()
        assert [script.name for script, _ in fixed(app).started] == ["rollback"]


async def test_fix_is_the_key_after_a_failure_with_a_known_remedy(make_app: MakeApp) -> None:
    app = make_app(glances.failed())
    async with app.run_test(size=(80, 24)) as pilot:
        assert "F fix" in screen_text(app)
        await pilot.press("F", "l", "enter")
        await pilot.pause()
        ((script, options),) = fixed(app).started
        assert (script.name, options.fix) == ("redeploy", True)


async def test_fix_is_no_key_while_nothing_failed(make_app: MakeApp) -> None:
    app = make_app(glances.idle())
    async with app.run_test(size=(140, 40)) as pilot:
        assert "F fix" not in screen_text(app)
        await pilot.press("F")
        await pilot.pause()
        assert type(app.screen).__name__ == "MainScreen"


async def test_read_only_changes_nothing_and_says_so(make_app: MakeApp) -> None:
    app = make_app(glances.idle(), read_only=True)
    async with app.run_test(size=(140, 40)) as pilot:
        assert "READ-ONLY" in screen_text(app)
        await pilot.press("D")
        await pilot.pause()
        assert type(app.screen).__name__ == "MainScreen"
        await pilot.press("colon", *"redeploy", "enter")
        await pilot.pause()
        await pilot.pause()
        assert "read-only" in screen_text(app)
        assert fixed(app).started == []


async def test_interrupt_is_there_while_a_run_goes_on(make_app: MakeApp) -> None:
    app = make_app(glances.loading())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("i")
        await pilot.pause()
        assert fixed(app).interrupted == 1


async def test_what_was_done_is_saved_as_a_script_that_does_the_same(make_app: MakeApp, tmp_path: Path) -> None:
    app = make_app(glances.idle())
    path = tmp_path / "tonight.yaml"
    async with app.run_test(size=(140, 40)) as pilot:
        for _ in range(2):  # the second does over again what the first did
            await pilot.press("D", "l", "enter")
            await pilot.pause()
        await pilot.press("colon", *f"save {path}", "enter")
        await pilot.pause()
        await pilot.pause()
        assert load_script(str(path)).items == load_script("redeploy").items
        assert "--node gpu1 --profile kimi-k2.5-nvfp4" in path.read_text()
        await pilot.press("colon", *f"save {path}", "enter")
        await pilot.pause()
        await pilot.pause()
        assert "exists" in screen_text(app)


async def test_saving_nothing_says_so(make_app: MakeApp) -> None:
    app = make_app(glances.idle())
    async with app.run_test(size=(140, 40)) as pilot:
        await pilot.press("colon", *"save x", "enter")
        await pilot.pause()
        await pilot.pause()
        assert "nothing was done yet" in screen_text(app)


async def test_quitting_while_a_run_goes_on_says_what_stays(make_app: MakeApp) -> None:
    app = make_app(glances.loading())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("q")
        await pilot.pause()
        assert "goes on" in screen_text(app)
        await pilot.press("enter")
        await pilot.pause()
    assert app.return_value == 0
    assert fixed(app).interrupted == 0


async def test_quitting_at_rest_is_one_key(make_app: MakeApp) -> None:
    app = make_app(glances.idle())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("q")
        await pilot.pause()
    assert app.return_value == 0


async def test_a_run_in_hand_is_not_doubled(make_app: MakeApp) -> None:
    app = make_app(replace(glances.loading()))
    async with app.run_test(size=(140, 40)) as pilot:
        await pilot.press("colon", *"redeploy", "enter")
        await pilot.pause()
        await pilot.pause()
        assert "still going" in screen_text(app)
        assert fixed(app).started == []


async def test_a_question_of_a_run_is_a_dialog_with_a_typed_word(make_app: MakeApp) -> None:
    app = make_app(glances.idle())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("D", "l", "enter")
        await pilot.pause()
        ((_, options),) = fixed(app).started
        import asyncio

        asked = asyncio.ensure_future(options.confirm("Remove /srv/models/old?", "old"))
        await pilot.pause()
        await pilot.pause()
        assert isinstance(app.screen, Typed)
        await pilot.press("tab", *"old", "enter")
        await pilot.pause()
        assert await asked is True


async def test_stop_asks_names_what_serves_and_is_saved_so_that_it_stops_again(
    make_app: MakeApp, tmp_path: Path
) -> None:
    app = make_app(serving())
    path = tmp_path / "off.yaml"
    async with app.run_test(size=(140, 40)) as pilot:
        assert "X stop" in screen_text(app)
        await pilot.press("X")
        await pilot.pause()
        assert isinstance(app.screen, Question)
        assert f"Serves now: {samples.UNIT}" in screen_text(app)
        await pilot.press("tab", "enter")
        await pilot.pause()
        ((script, _),) = fixed(app).started
        assert script == load_script("stop")
        obey(app, "rollback 3")
        await pilot.pause()
        await pilot.press("l", "enter")
        await pilot.pause()
        assert fixed(app).started[-1][1].release == "3"
        obey(app, f"save {path}")
        back = Do("rollback", {"release": "3"})
        assert load_script(str(path)).items == (*load_script("stop").items, back)


async def test_stop_is_no_key_where_nothing_serves(make_app: MakeApp) -> None:
    app = make_app(glances.idle())
    async with app.run_test(size=(140, 40)) as pilot:
        assert "X stop" not in screen_text(app)
        await pilot.press("X")
        await pilot.pause()
        assert type(app.screen).__name__ == "MainScreen"


async def test_a_lock_is_shown_and_removed_after_a_question(make_app: MakeApp) -> None:
    owner = Owner("ann", "desk", 7, NOW.wall - 60, "0007", "redeploy", "t")
    app = make_app(replace(serving(), lock=owner))
    async with app.run_test(size=(140, 40)) as pilot:
        for keys, removed in ((("enter",), []), (("l", "enter"), [owner])):
            obey(app, "unlock")
            await until(pilot, lambda: "ann@desk" in screen_text(app))
            assert isinstance(app.screen, Question)
            await pilot.press(*keys)
            said = "is removed" if removed else "left as it is"
            await until(pilot, lambda said=said: said in screen_text(app))  # type: ignore[misc]
            assert fixed(app).unlocked == removed
        fixed(app).shown = replace(serving(), version=9)
        obey(app, "unlock")
        await until(pilot, lambda: "is not locked" in screen_text(app))


async def test_a_run_is_reported_and_replayed_from_the_command_line(
    make_app: MakeApp, store: Store, own_home: Path
) -> None:
    run = store.begin("redeploy", "gpu1", "p", script="redeploy", rehearsal=False, started=NOW.wall - 60)
    store.append(
        run, RunStarted(time=NOW.wall - 60, run=run, verb="redeploy", node="gpu1", profile="p", steps=("stop",))
    )
    store.append(run, RunEnded(time=NOW.wall, run=run, code=0, text="done"))
    app = make_app(serving())
    async with app.run_test(size=(140, 40)) as pilot:
        obey(app, f"report {run}")
        await until(pilot, lambda: f"Run {run} as a page" in screen_text(app))
        assert [page.name for page in (own_home / "state").rglob("*.html")] == [f"relaunch-{run}.html"]
        await pilot.press("enter")
        await until(pilot, lambda: type(app.screen).__name__ == "MainScreen")
        obey(app, f"show {run}")
        await until(pilot, lambda: type(app.screen).__name__ == "ReplayScreen")


async def test_a_redeploy_says_which_remedy_of_the_last_launch_it_leaves_out(make_app: MakeApp, store: Store) -> None:
    profile = glances.profile()
    run = store.begin("redeploy", "gpu1", profile.name, script="redeploy", rehearsal=False, started=NOW.wall - 60)
    begun = RunStarted(
        time=NOW.wall - 60, run=run, verb="redeploy", node="gpu1", profile=profile.name, steps=("launch",)
    )
    remedy = samples.remedy(profile, "kv-flag", NOW.wall - 50)
    for event in (begun, replace(remedy, applied=True), RunEnded(time=NOW.wall, run=run, code=0, text="done")):
        store.append(run, event)
    app = make_app(glances.idle())
    async with app.run_test(size=(140, 40)) as pilot:
        await pilot.press("D")
        await pilot.pause()
        assert f"Run {run} came up with a remedy that the profile lacks" in screen_text(app)
        await pilot.press("escape")
        obey(app, "fix")
        await pilot.pause()
        assert '+serve.flags.kv-cache-dtype: "bfloat16"' in screen_text(app)
        await pilot.press("l", "enter")
        await pilot.pause()
        ((script, options),) = fixed(app).started
        assert (script.name, options.fix) == ("redeploy", True)
