"""Nodes, plan, cause, throughput, runs, replay and GPUs by keys: what each key does, and what it asks of the app."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from console.checkpoint.fit import Alternative, Fit
from console.deploy.store import Store
from console.errors import RelaunchError
from console.events import Event, StepChanged
from console.live import Glance
from console.logs.spool import Spool
from console.profile.load import profile_folders
from console.seen import Seen
from console.state import fold
from screens import plan as plan_screen
from screens.app import ConsoleApp
from screens.cause import CauseDetail
from screens.dialogs import Dialog
from screens.failure import account, find_line, lines_around, neighbours
from screens.glyphs import ASCII, UNICODE
from screens.gpu_detail import GpuPane, shares
from screens.known_nodes import KnownNode, known_nodes
from screens.nodes import NodeList, NodesScreen
from screens.profile_choice import ProfileChoice
from screens.replay import ReplayScreen, Tape
from screens.runs import RunList, history, outcome
from screens.source import Moment
from screens.widgets.checklist import Checklist
from screens.widgets.plots import Bar, plot
from tests.screens import other_samples as samples
from tests.screens.conftest import MakeApp
from tests.screens.golden import screen_text
from tests.screens.test_other_screens import fill, home, put_events, put_run, write_nodes

__all__ = ["home"]


async def on(app: ConsoleApp, pilot: Any, screen: str, **given: Any) -> None:
    app.open(screen, **given)
    await pilot.pause()


def turn(app: ConsoleApp, glance: Glance) -> None:
    """The source tells something else from now on."""
    app.source.shown = replace(glance, version=app.source.shown.version + 1)  # type: ignore[attr-defined]
    app.tick(again=True)


# ---------------------------------------------------------------------------------------------------------------- plan


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


# --------------------------------------------------------------------------------------------------------------- cause


async def test_f_asks_and_then_relaunches_with_the_fix(make_app: MakeApp) -> None:
    app = make_app(samples.failed(), first="status")
    async with app.run_test(size=(100, 30)) as pilot:
        await on(app, pilot, "cause")
        assert "F the KV cache in bfloat16" in screen_text(app)
        await pilot.press("F")
        await pilot.pause()
        assert isinstance(app.screen, Dialog)
        await pilot.press("l", "enter")
        await pilot.pause()
        [(script, options)] = app.source.started  # type: ignore[attr-defined]
        assert (script.name, options.fix) == ("redeploy", True)


async def test_without_lines_from_triage_the_evidence_tells_them(make_app: MakeApp, home: Path) -> None:
    folder = home / "state" / "relaunch" / "evidence" / "0141"
    folder.mkdir(parents=True)
    (folder / "journal.log").write_text("".join(f"line {n}\n" for n in range(1, 200)))
    app = make_app(samples.base(run=fold(samples.failed_events())), first="status")
    async with app.run_test(size=(100, 40)) as pilot:
        await on(app, pilot, "cause")
        text = screen_text(app)
        assert "▸    110 line 110" in text
        assert [f"line {n}" in text for n in (106, 107, 113, 114)] == [False, True, True, False]
        assert "evidence/0141" in text.replace("\n          ", "")


async def test_without_evidence_the_spool_tells_them(make_app: MakeApp, spool: Spool) -> None:
    spool.append_lines(["before", f"(Worker_TP0) {samples.CAUSE_TEXT}", "after"])
    app = make_app(samples.base(run=fold(samples.failed_events())), first="status")
    async with app.run_test(size=(140, 40)) as pilot:
        await on(app, pilot, "cause")
        text = screen_text(app)
        assert "before" in text
        assert "after" in text
        assert app.screen.query_one(CauseDetail).spool_line == len("before\n")


async def test_enter_opens_the_log_at_the_cause(make_app: MakeApp, spool: Spool) -> None:
    spool.append_lines([f"INFO line {n}" for n in range(300)])
    spool.append_lines([f"(Worker_TP0) {samples.CAUSE_TEXT}"])
    spool.append_lines([f"INFO line {n}" for n in range(300, 600)])
    app = make_app(samples.failed(), first="status")
    async with app.run_test(size=(100, 30)) as pilot:
        await on(app, pilot, "cause")
        await pilot.press("enter")
        await pilot.pause()
        await pilot.pause()
        text = screen_text(app)
        assert "line 299" in text
        assert "line 300" in text
        assert "▸                        (Worker_TP0) ValueError" in text


def test_the_cause_is_found_in_the_spool_from_its_end(spool: Spool) -> None:
    noise = [f"noise {n} {'x' * 40}" for n in range(12_000)]
    spool.append_lines([*noise, "boom: why", *noise])
    at = find_line(spool, "boom: why")
    assert at is not None
    assert spool.line_at(at) == "boom: why"
    assert lines_around(spool, at)[0][2:5] == (noise[-1], "boom: why", noise[0])
    assert find_line(spool, "never said") is None
    assert find_line(spool, "") is None
    assert find_line(spool, "boom: why", back=100_000) is None


def test_lines_around_at_the_ends_of_a_spool(spool: Spool) -> None:
    spool.append_lines(["a", "b", "c"])
    assert lines_around(spool, 0) == (("a", "b", "c"), 0)
    assert lines_around(spool, 4) == (("a", "b", "c"), 2)


def test_neighbours_at_the_ends_of_a_log(tmp_path: Path) -> None:
    path = tmp_path / "journal.log"
    path.write_text("a\nb\nc")
    assert neighbours(path, 1) == (("a", "b", "c"), 0)
    assert neighbours(path, 3) == (("a", "b", "c"), 2)
    assert neighbours(path, 9) == ((), 0)
    assert neighbours(tmp_path / "none", 1) == ((), 0)


def test_which_failure_is_told() -> None:
    run, log = samples.failed().run, samples.failed().log
    assert account(samples.base()) is None
    both = account(samples.failed())
    assert both is not None
    assert (both.title, both.lines, both.at) == ("launch failed", 636, 3)
    alone = account(samples.base(log=log))
    assert alone is not None
    assert (alone.title, alone.stage) == ("the last launch failed", "weights")
    other = replace(run, cause=replace(run.cause, step="download", text="disk full"))  # type: ignore[type-var]
    kept = account(samples.base(run=other, log=log))
    assert kept is not None
    assert (kept.text, kept.around) == ("disk full", ())
    ended = account(samples.base(run=replace(run, cause=None)))
    assert ended is not None
    assert ended.title == "launch failed"


async def test_a_cause_that_is_not_the_logs_shows_both(make_app: MakeApp) -> None:
    glance = samples.failed()
    other = replace(glance.run, cause=replace(glance.run.cause, step="download", text="disk full"))  # type: ignore[type-var]
    app = make_app(replace(glance, run=other), first="status")
    async with app.run_test(size=(140, 40)) as pilot:
        await on(app, pilot, "cause")
        text = screen_text(app)
        assert "disk full" in text
        assert "log says ValueError" in text


# ---------------------------------------------------------------------------------------------------------- throughput


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


# ---------------------------------------------------------------------------------------------------------------- runs


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


# -------------------------------------------------------------------------------------------------------------- replay


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


# ---------------------------------------------------------------------------------------------------------------- GPUs


async def test_digits_show_one_gpu_and_a_shows_all(make_app: MakeApp) -> None:
    app = make_app(samples.base(gpus=samples.gpu_view()), first="status")
    async with app.run_test(size=(100, 30)) as pilot:
        await on(app, pilot, "gpu", index=3)
        pane = app.screen.query_one(GpuPane)
        assert "GPU 3" in screen_text(app)
        for number in range(1, 9):
            await pilot.press(str(number))
            assert pane.one == number - 1
        await pilot.press("right")
        assert pane.one == 0
        await pilot.press("left")
        assert pane.one == 7
        await pilot.press("a")
        assert pane.one is None


async def test_a_gpu_that_is_not_there_is_said(make_app: MakeApp) -> None:
    view = samples.gpu_view()
    assert view.sample is not None
    two = replace(view, sample=replace(view.sample, gpus=view.sample.gpus[:2], findings=()))
    app = make_app(samples.base(gpus=two), first="status")
    async with app.run_test(size=(100, 30)) as pilot:
        await on(app, pilot, "gpu")
        await pilot.press("5")
        await pilot.pause()
        assert "there is no GPU number 5" in screen_text(app)


def test_shares_of_memory_add_up_and_unknown_stays_unknown() -> None:
    mib = samples.MIB
    known = shares(samples.gpu(0, 80000, mine=60000, other=9000), samples.UNIT)
    assert (known.ours, known.foreign, known.loose, known.free) == (
        60000 * mib,
        9000 * mib,
        11000 * mib,
        (97887 - 80000 - 638) * mib,
    )
    hidden = samples.gpu(0, 80000)
    hidden = replace(hidden, processes=(replace(hidden.processes[0], memory=None),))
    assert shares(hidden, samples.UNIT).ours is None
    nothing = shares(samples.gpu(0, None, mine=0), samples.UNIT)
    assert (nothing.ours, nothing.foreign, nothing.loose, nothing.free) == (None, None, None, None)
    assert shares(samples.gpu(0, 0, mine=0), "").ours == 0


# --------------------------------------------------------------------------------------------------------------- nodes


def test_every_source_of_nodes_is_listed_once(store: Store, home: Path) -> None:
    write_nodes(home)
    with (home / "home" / ".ssh" / "config").open("a") as config:
        config.write("\nHost gpu1\n  User root\n")
    fill(store)
    nodes, trouble = known_nodes(store)
    by_name = {node.name: node for node in nodes}
    assert not trouble
    assert len(by_name) == len(nodes)
    assert set(by_name) >= {"rehearsal", "local", "gpu1", "lab", "dgx", "bastion"}
    assert (by_name["gpu1"].kind, by_name["gpu1"].production, by_name["gpu1"].where) == ("file", True, "root@10.0.0.11")
    assert by_name["lab"].where == "ops@lab.example.org via bastion.example.org"
    assert by_name["dgx"].kind == "openssh"
    assert by_name["gpu1"].good is not None
    assert by_name["gpu1"].last is not None
    assert (by_name["gpu1"].good.id, by_name["gpu1"].last.id) == ("0001", "0006")
    assert by_name["rehearsal"].up is False


async def test_a_nodes_file_with_problems_is_said_and_the_rest_is_listed(make_app: MakeApp, home: Path) -> None:
    write_nodes(home, "nodes:\n  gpu1: {hots: 10.0.0.11}\n")
    app = make_app(samples.base(), first="status")
    async with app.run_test(size=(140, 40)) as pilot:
        await on(app, pilot, "nodes")
        text = screen_text(app)
        assert "the nodes file cannot be used" in text
        assert "rehearsal" in text
        assert "dgx" in text


class Opened:
    """An opening that remembers what it was asked for and has nothing."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def folders(self) -> tuple[Path, ...]:
        return profile_folders([])

    def node_live(self, node: str, profile: str = "") -> object:
        self.asked.append((node, profile))
        raise RelaunchError(f"{node} is not to be opened in a test")

    def practice(self, profile: str = "") -> object:
        self.asked.append(("practice", profile))
        raise RelaunchError("no practice node in a test")


@pytest.mark.parametrize(
    ("name", "asked"),
    [("rehearsal", ("practice", "")), ("local", ("local", "kimi-k2.5-nvfp4")), ("dgx", ("dgx", "kimi-k2.5-nvfp4"))],
)
async def test_enter_asks_the_app_for_the_node(
    name: str, asked: tuple[str, str], make_app: MakeApp, home: Path
) -> None:
    write_nodes(home)
    app = make_app(samples.base(), first="status")
    opening = Opened()
    app.opening = opening  # type: ignore[assignment]
    async with app.run_test(size=(140, 40)) as pilot:
        await on(app, pilot, "nodes")
        table = app.screen.query_one(NodeList)
        assert table.chosen == "gpu1"
        table._go(table.keys().index(name))
        await pilot.press("enter")
        await pilot.pause()
        if name != "rehearsal":
            assert opening.asked == []
            assert isinstance(app.screen, ProfileChoice)
            shown = screen_text(app)
            assert "glm-5" in shown
            assert "never there" in shown
            await pilot.press("enter")  # the profile in hand is chosen at first
            await pilot.pause()
        assert opening.asked == [asked]
        assert "in a test" in screen_text(app)


async def test_a_node_that_was_left_is_listed_as_it_was_last_seen(make_app: MakeApp, store: Store, home: Path) -> None:
    write_nodes(home)
    seen = Seen(samples.WALL - 7200, "kimi-k2.5", 8, "NVIDIA RTX PRO 6000", 600 << 30, 764 << 30)
    store.note_seen("dgx", replace(seen, serves="old"), rehearsal=False)
    store.note_seen("dgx", seen, rehearsal=False)
    app = make_app(samples.base(), first="status")
    async with app.run_test(size=(140, 40)) as pilot:
        await on(app, pilot, "nodes")
        (row,) = [text for text in screen_text(app).splitlines() if " dgx " in text]
        for words in ("? not connected", "kimi-k2.5", "8 ×", "600/764 GiB", "2 h ago"):
            assert words in row


async def test_enter_on_the_node_that_one_is_on_goes_back(make_app: MakeApp, home: Path) -> None:
    write_nodes(home)
    app = make_app(samples.base(), first="status")
    async with app.run_test(size=(140, 40)) as pilot:
        await on(app, pilot, "nodes")
        assert isinstance(app.screen, NodesScreen)
        await pilot.press("enter")
        await pilot.pause()
        assert not isinstance(app.screen, NodesScreen)


async def test_a_node_of_the_command_line_is_listed_too(make_app: MakeApp) -> None:
    app = make_app(samples.base(node="root@10.9.9.9"), first="status")
    async with app.run_test(size=(140, 40)) as pilot:
        await on(app, pilot, "nodes")
        assert "root@10.9.9.9" in screen_text(app)
        assert app.screen.query_one(NodeList).get("root@10.9.9.9") == KnownNode(
            "root@10.9.9.9", "openssh", "named on the command line"
        )


def test_a_step_that_never_ran_is_no_need() -> None:
    run = fold([samples.started("0001", dry=True), StepChanged(time=1.0, step="inspect", state="satisfied")])
    assert plan_screen._needed(run) == []
