"""The first cause by keys: the remedy, the lines around it, the log at its place."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from console.logs.spool import Spool
from console.state import fold
from screens.cause import CauseDetail
from screens.dialogs import Dialog
from screens.failure import account, find_line, lines_around, neighbours
from tests.screens import other_samples as samples
from tests.screens.conftest import MakeApp
from tests.screens.golden import screen_text
from tests.screens.test_other_screens import home
from tests.screens.turning import on

__all__ = ["home"]


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
