from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from console.deploy.store import Store, open_store, state_folder
from console.errors import RelaunchError, UsageError
from console.events import Noted, RunEnded, StepChanged


def begin(store: Store, node: str = "gpu1") -> str:
    return store.begin("redeploy", node, "kimi", script="redeploy", rehearsal=False, started=1.0)


def test_runs_are_numbered_and_their_events_replay_in_order(tmp_path: Path) -> None:
    with open_store(tmp_path / "a.db") as store:
        first, second = begin(store), begin(store)
        events = [Noted(time=float(n), text=f"n{n} • ünï") for n in range(20)]
        for event in events:
            store.append(first, event)
            store.append(second, Noted(time=0.0, text="other"))
        assert (first, second) == ("0001", "0002")
        assert list(store.events(first)) == events


def test_an_end_closes_the_run_and_what_a_killed_console_wrote_is_there(tmp_path: Path) -> None:
    store = Store(tmp_path / "a.db")
    run, other = begin(store), begin(store)
    store.append(run, RunEnded(time=9.0, run=run, code=11, text="restored"))
    store.append(other, Noted(time=2.0, text="seen"))
    # no close: another process opens the same file as after a SIGKILL
    with open_store(tmp_path / "a.db") as again:
        ended, unfinished = again.run(run), again.run(other)
        assert (ended.code, ended.text, ended.ended) == (11, "restored", 9.0)
        assert unfinished.code is None
        assert [row.id for row in again.runs()] == [other, run]
        assert again.runs(node="elsewhere") == ()
    store.close()


def test_two_processes_write_one_store(tmp_path: Path) -> None:
    with open_store(tmp_path / "a.db") as one, open_store(tmp_path / "a.db") as two:
        runs = [begin(one), begin(two), begin(one)]
        assert len(set(runs)) == 3
        for store, run in ((one, runs[0]), (two, runs[1])):
            store.append(run, Noted(time=1.0, text=run))
        assert [event for event in one.events(runs[1])] == [Noted(time=1.0, text=runs[1])]


def test_expected_times_come_from_the_last_run_that_did_something(tmp_path: Path) -> None:
    with open_store(tmp_path / "a.db") as store:
        for seconds in (5.0, 7.0):
            run = begin(store)
            store.append(run, StepChanged(time=1.0, step="launch", state="done", seconds=seconds))
            store.append(run, StepChanged(time=1.0, step="inspect", state="satisfied", seconds=1.0))
        assert store.durations("gpu1", "kimi") == {"launch": 7.0}


@pytest.mark.parametrize("run", ["0009", "x", "", "-1", "1;drop table runs"])
def test_a_run_that_is_not_there_is_said(tmp_path: Path, run: str) -> None:
    with open_store(tmp_path / "a.db") as store, pytest.raises(UsageError, match="run"):
        store.run(run)


def test_a_newer_or_broken_store_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    Store(path).close()
    with sqlite3.connect(path) as db:
        db.execute("pragma user_version=99")
    db.close()
    with pytest.raises(UsageError, match="newer Relaunch"):
        Store(path)
    broken = tmp_path / "b.db"
    broken.write_bytes(b"this is no database at all, but it is somebody's file" * 50)
    before = broken.read_bytes()
    with pytest.raises(RelaunchError, match="cannot be opened"):
        Store(broken)
    assert broken.read_bytes() == before


def test_the_state_folder_is_private() -> None:
    assert state_folder().stat().st_mode & 0o777 == 0o700
    with open_store() as store:
        assert store.path.stat().st_mode & 0o777 == 0o600
