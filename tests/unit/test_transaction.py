"""What surrounds a walk, without a node: the order of evidence and clean-up, restarts, the switch, what is left unfinished."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from console.deploy import deadman, node_deadman
from console.deploy.resume import unfinished
from console.deploy.run import REBOOTS, Transaction, ending
from console.deploy.step import Context
from console.deploy.store import Store, open_store
from console.deploy.unitfile import parse_unit
from console.errors import NotReady, RelaunchError, Restored, RollbackFailed, Unreachable
from console.events import Event, Noted, RunEnded, RunStarted, StepChanged
from console.node.facts import Facts, Paths
from tests.unit.test_run import Fake, states, walk

BOOT = "11111111-2222"


@dataclasses.dataclass
class Recorded(Transaction):
    calls: list[str] = dataclasses.field(default_factory=list)
    end: RelaunchError | None = None

    def at(self, step: str) -> None:
        self.calls.append(f"at {step}")

    async def capture(self, ctx: Context, step: str, error: RelaunchError) -> None:
        self.calls.append(f"capture {step}")

    async def overtaken(self, ctx: Context) -> RelaunchError | None:
        return self.end

    async def settle(self, ctx: Context) -> None:
        self.calls.append("settle")

    async def rebooted(self, ctx: Context) -> None:
        self.calls.append("rebooted")


def recorded(*steps: Fake, **options: Any) -> tuple[Any, list[Event], Recorded]:
    course, events = walk(*steps, **options)
    course.transaction = Recorded()
    return course, events, course.transaction


async def test_evidence_comes_before_the_first_undo() -> None:
    stop, launch = Fake("stop", downtime=True), Fake("launch", downtime=True, fails=[NotReady("hung")])
    course, _, around = recorded(stop, launch)
    launch.calls = around.calls
    with pytest.raises(Restored):
        await course.walk()
    assert around.calls.index("capture launch") < around.calls.index("undo") < around.calls.index("settle")


@pytest.mark.parametrize("on_failure", ["rollback", "hold"])
async def test_a_run_that_is_over_leaves_no_switch_armed(on_failure: str) -> None:
    course, _, around = recorded(Fake("stop", downtime=True, fails=[NotReady("x")]), on_failure=on_failure)
    with pytest.raises(RelaunchError):
        await course.walk()
    assert around.calls[-1] == "settle"


async def test_a_way_back_that_lost_its_link_leaves_the_switch_to_the_node() -> None:
    course, _, around = recorded(Fake("stop", downtime=True, fails=[NotReady("x")]), serves=Unreachable("gone"))
    with pytest.raises(RollbackFailed):
        await course.walk()
    assert "settle" not in around.calls


async def test_a_node_that_went_back_by_itself_ends_the_run_and_nothing_is_undone() -> None:
    stop, launch = Fake("stop", downtime=True), Fake("launch", downtime=True, fails=[Unreachable("lost")])
    course, events, around = recorded(stop, launch, Fake("keep"))
    around.end = Restored("the switch has acted")
    with pytest.raises(Restored, match="the switch has acted"):
        await course.walk()
    assert "undo" not in stop.calls + launch.calls
    assert states(events)[-2:] == [("launch", "failed"), ("keep", "skipped")]


async def test_a_failure_that_is_the_switchs_doing_is_told_as_that() -> None:
    launch = Fake("launch", downtime=True, fails=[NotReady("never started")])
    course, events, around = recorded(launch)
    around.end = Restored("the switch has acted")
    course.ctx.found["deadman"] = "token"
    with pytest.raises(Restored, match="the switch has acted"):
        await course.walk()
    assert "undo" not in launch.calls
    assert [event.detail for event in events if isinstance(event, StepChanged)][-1] == "the switch has acted"


@dataclasses.dataclass
class Boot:
    boot_id: str


@pytest.mark.parametrize("error", [Unreachable("lost"), NotReady("the unit is gone")])
async def test_a_restarted_node_is_walked_from_the_first_step(error: RelaunchError) -> None:
    stop = Fake("stop", downtime=True)
    launch = Fake("launch", downtime=True, fails=[error])
    course, events, around = recorded(stop, launch)
    course.ctx.facts = Boot("first")
    course.ctx.found.update(stopped=("old.service",), launch="a start that is gone", deadman="token")

    async def refresh() -> Any:
        course.ctx.facts = Boot("second" if launch.calls else "first")

    course.ctx.refresh = refresh
    launched = launch.apply

    async def apply(ctx: Context) -> None:
        stop.satisfied = False  # what was enabled runs again after the restart
        await launched(ctx)

    launch.apply = apply  # type: ignore[method-assign]
    assert await course.walk() == ("stop", "stop", "launch")
    assert "rebooted" in around.calls
    assert course.ctx.found == {"stopped": ("old.service",), "deadman": "token"}
    assert any(isinstance(event, Noted) and "started again" in event.text for event in events)


async def test_a_node_that_restarts_for_ever_ends_the_run() -> None:
    stop = Fake("stop", downtime=True, fails=[Unreachable("lost")] * 9)
    course, _, _ = recorded(stop)
    count = iter(range(99))

    async def refresh() -> Any:
        course.ctx.facts = Boot(str(next(count)))

    course.ctx.refresh = refresh
    course.ctx.facts = Boot("x")
    course.ctx.node = dataclasses.make_dataclass("Node", ["name"])("gpu1")
    with pytest.raises(Restored, match=f"started again {REBOOTS + 1} times"):
        await course.walk()


async def test_a_resumed_downtime_that_fails_early_goes_back_too() -> None:
    shards, launch = Fake("shards", fails=[NotReady("a file is gone")]), Fake("launch", downtime=True)
    course, _, _ = recorded(shards, launch)
    course.ctx.found["adopted"] = True
    with pytest.raises(Restored):
        await course.walk()
    assert launch.calls == ["undo"]


def test_an_interrupted_run_says_how_long_the_node_waits() -> None:
    _, text, remedy = ending(KeyboardInterrupt(), (), dry_run=False, armed=900.0)
    assert "within 15:00 it goes back to what served before" in text
    assert "resume" in remedy


# ---------------------------------------------------------------------------------------------------- the switch's files


def facts_with(plan: object = None, record: object = None) -> Facts:
    values: dict[str, Any] = {field.name: None for field in dataclasses.fields(Facts)}
    paths = Paths(home="/root", units="/u", cgroup="/c", shm="/s", state="/state")
    texts = {"/state/deadman/plan.json": plan, "/state/deadman/record.json": record}
    files = {path: text if isinstance(text, str) else json.dumps(text) for path, text in texts.items() if text}
    return Facts(**(values | {"paths": paths, "files": files, "expanded": {}, "boot_id": BOOT}))


PLAN = {
    "run": "0007", "token": "t", "boot": BOOT, "seconds": 900, "since": 10.0, "downtime_started": 9.0,
    "ours": "k.service", "stopped": ["old.service"], "texts": {"/u/k.service": None}, "bring_back": [], "goal": None,
}  # fmt: skip
RECORD = {
    "run": "0007",
    "token": "t",
    "boot": BOOT,
    "state": "restored",
    "text": "old serves",
    "began": 1.0,
    "ended": 2.0,
}


def test_an_armed_switch_and_what_it_did_are_told_in_words() -> None:
    assert deadman.sentence(facts_with()) == ""
    assert "is armed: 15:00 without its console" in deadman.sentence(facts_with(PLAN))
    assert "is armed: 15:00 without its console bring back what served, and the node was started again since" in (
        deadman.sentence(facts_with({**PLAN, "boot": "other"}))
    )
    assert "started again while run 0007" in deadman.sentence(facts_with({**PLAN, "boot": "other", "seconds": 0}))
    assert deadman.sentence(facts_with({**PLAN, "seconds": 0})) == ""
    assert "has acted, 1970-01-01 00:00:02 UTC: old serves" in deadman.sentence(facts_with(None, RECORD))
    assert "is at work" in deadman.sentence(facts_with(PLAN, {**RECORD, "state": "acting"}))
    assert "failed" in deadman.sentence(facts_with(None, {**RECORD, "state": "failed"}))


def test_the_switchs_unit_survives_any_path() -> None:
    words = ["/usr/bin/python3", "-I", '/srv/a b/50% "x" $HOME\\n/restore.py']
    told = {"plan": "/p", "command": " ".join(map(node_deadman.quoted, words)), "boot": node_deadman.BOOT}
    assert list(parse_unit(node_deadman.SERVICE_TEXT % told).argv) == words


@pytest.mark.parametrize(
    ("heard", "acts"), [(-3600.0, True), (-0.1, True), (3600.0, True), (None, True), (-3600.0, False)]
)
def test_the_switch_acts_in_time_whatever_the_clock_says_after_a_boot(
    tmp_path: Path, heard: float | None, acts: bool
) -> None:
    """Long overdue, nearly due, heard by a clock that was ahead, never heard; and a plan that is taken away."""
    if acts:
        (tmp_path / "plan.json").write_text(json.dumps({"seconds": 0.3, "armed": 5.0}))
    if heard is not None:
        (tmp_path / "heartbeat").touch()
        os.utime(tmp_path / "heartbeat", (time.time() + heard,) * 2)
    found = node_deadman.wait_until_late(str(tmp_path))
    assert (found is not None) is acts
    assert heard is not None or found == 5.0


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"run": 1}', '{"run": "1", "texts": 3}'])
def test_files_that_say_something_else_are_no_switch(text: str) -> None:
    assert deadman.plan_of(facts_with(text or None)) is None
    assert deadman.record_of(facts_with(None, text or None)) is None


# ---------------------------------------------------------------------------------------------------------- unfinished


def a_run(store: Store, code: int | None, *, script: str = "redeploy", read_only: bool = False) -> str:
    run = store.begin(script, "gpu1", "kimi", script=script, rehearsal=False, started=1.0)
    store.append(
        run, RunStarted(time=1.0, run=run, verb=script, node="gpu1", profile="kimi", steps=(), read_only=read_only)
    )
    if code is not None:
        store.append(run, RunEnded(time=2.0, run=run, code=code, text="x", downtime=float(code + 3)))
    return run


def test_only_the_newest_run_that_could_change_anything_is_taken_up(tmp_path: Path) -> None:
    with open_store(tmp_path / "db") as store:
        assert unfinished(store, "gpu1") is None
        killed = a_run(store, None)
        a_run(store, None, read_only=True)
        a_run(store, 130, script="bench")
        found = unfinished(store, "gpu1")
        assert found is not None
        assert (found.run, found.script, found.here) == (killed, "redeploy", True)
        assert unfinished(store, "gpu2") is None
        a_run(store, 11)
        assert unfinished(store, "gpu1") is None, "a later run took the matter over"
        a_run(store, 130, script="rollback")
        assert unfinished(store, "gpu1", facts_with(PLAN)).script == "rollback"  # type: ignore[union-attr]


def test_a_run_of_another_console_is_known_by_what_stands_on_the_node(tmp_path: Path) -> None:
    with open_store(tmp_path / "db") as store:
        found = unfinished(store, "gpu1", facts_with(PLAN))
        assert found is not None
        assert (found.run, found.script, found.here) == ("0007", "redeploy", False)
        goal = {**PLAN, "goal": {"release": 1, "units": []}}
        assert unfinished(store, "gpu1", facts_with(goal)).script == "rollback"  # type: ignore[union-attr]


def test_downtime_is_kept_and_compared_with_the_last(tmp_path: Path) -> None:
    with open_store(tmp_path / "db") as store:
        first = a_run(store, 0)
        a_run(store, 11)
        second = a_run(store, 0)
        assert store.run(first).downtime == 3.0
        assert [row.downtime for row in store.runs()] == [3.0, 14.0, 3.0]
        assert store.last_downtime("gpu1", "kimi", before=second) == 3.0
        assert store.last_downtime("gpu1", "kimi", before=first) is None
        assert store.last_downtime("gpu2", "kimi", before=second) is None
