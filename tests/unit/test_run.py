from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from console.deploy.run import Emitter, Walk, ending
from console.deploy.step import Change, Check, Context, Needed, Satisfied
from console.errors import (
    ExitCode,
    NotReady,
    Refused,
    RelaunchError,
    Restored,
    RollbackFailed,
    Unreachable,
)
from console.events import CauseFound, Changed, Event, Noted, StepChanged
from console.text import Secret


@dataclass
class Fake:
    """A step with a scripted course: what each call of apply raises, and whether it is already satisfied."""

    name: str
    downtime: bool = False
    satisfied: bool = False
    fails: list[BaseException] = field(default_factory=list)
    undo_fails: RelaunchError | None = None
    calls: list[str] = field(default_factory=list)
    tells: bool = False

    async def check(self, ctx: Context) -> Check:
        self.calls.append("check")
        return Satisfied("already") if self.satisfied else Needed((Change(f"do {self.name}", "- a\n+ b"),))

    async def apply(self, ctx: Context) -> None:
        self.calls.append("apply")
        if self.fails:
            error = self.fails.pop(0)
            if self.tells:
                ctx.emit(CauseFound(time=0.0, step=self.name, text="told by the step"))
            raise error

    async def verify(self, ctx: Context) -> str:
        self.calls.append("verify")
        self.satisfied = True
        return "measured"

    async def undo(self, ctx: Context) -> None:
        self.calls.append("undo")
        if self.undo_fails:
            raise self.undo_fails


@dataclass(frozen=True)
class FakeProfile:
    on_failure: str = "rollback"


def walk(*steps: Fake, on_failure: str = "rollback", serves: RelaunchError | None = None) -> tuple[Walk, list[Event]]:
    events: list[Event] = []

    async def refresh() -> Any:
        return None

    async def serves_again(ctx: Context) -> str:
        if serves:
            raise serves
        return "glm-5 serves again"

    ctx = Context(
        node=cast(Any, None),
        profile=cast(Any, FakeProfile(on_failure)),
        facts=cast(Any, None),
        emit=events.append,
        confirm=cast(Any, None),
        refresh=refresh,
    )
    return Walk(ctx, steps, serves_again), events


def states(events: list[Event]) -> list[tuple[str, str]]:
    return [(event.step, event.state) for event in events if isinstance(event, StepChanged)]


async def test_satisfied_steps_are_left_alone_and_needed_ones_are_verified() -> None:
    one, two = Fake("patch", satisfied=True), Fake("unit")
    course, events = walk(one, two)
    assert await course.walk() == ("unit",)
    assert one.calls == ["check"]
    assert two.calls == ["check", "apply", "verify"]
    assert states(events)[-1] == ("unit", "done")


async def test_a_plan_changes_nothing_and_shows_its_diffs() -> None:
    one, two = Fake("patch"), Fake("unit", satisfied=True)
    course, events = walk(one, two)
    assert await course.plan() == ("patch",)
    assert one.calls == ["check"]
    assert [event.diff for event in events if isinstance(event, Changed)] == ["- a\n+ b"]


async def test_a_look_at_every_step_is_told_whole_or_not_at_all() -> None:
    one, two = Fake("patch", satisfied=True), Fake("unit", satisfied=True)
    course, events = walk(one, two)
    assert await course.satisfied()
    assert [state for step, state in states(events)] == ["checking", "satisfied"] * 2
    two.satisfied = False
    course, events = walk(one, two)
    assert not await course.satisfied()
    assert events == []
    assert await course.walk() == ("unit",)
    assert states(events)[-1] == ("unit", "done")


async def test_a_failure_before_downtime_keeps_its_code_and_undoes_nothing() -> None:
    one, two, three = Fake("download"), Fake("shards", fails=[Refused("no")]), Fake("stop", downtime=True)
    course, events = walk(one, two, three)
    with pytest.raises(Refused):
        await course.walk()
    assert "undo" not in one.calls + two.calls
    assert three.calls == []
    assert states(events)[-2:] == [("shards", "failed"), ("stop", "skipped")]


async def test_a_failure_in_downtime_goes_back_newest_first_and_proves_it() -> None:
    order: list[str] = []
    unit, stop = Fake("unit"), Fake("stop", downtime=True)
    launch = Fake("launch", downtime=True, fails=[NotReady("hung in nccl_init", "look at P2P")])
    for step in (unit, stop, launch):
        step.calls = _Shared(order, step.name)
    course, events = walk(unit, stop, launch)
    with pytest.raises(Restored, match="hung in nccl_init; glm-5 serves again"):
        await course.walk()
    assert [call for call in order if call.endswith("undo")] == ["launch undo", "unit undo", "stop undo"]
    assert any(isinstance(event, CauseFound) and event.remedy == "look at P2P" for event in events)


class _Shared(list[str]):
    def __init__(self, log: list[str], name: str) -> None:
        super().__init__()
        self._log, self._name = log, name

    def append(self, call: str) -> None:
        super().append(call)
        self._log.append(f"{self._name} {call}")


async def test_a_first_deployment_has_no_way_back_and_keeps_its_code() -> None:
    launch = Fake("launch", downtime=True, fails=[NotReady("hung")])
    course, _ = walk(launch)
    course.served = lambda ctx: False
    with pytest.raises(NotReady):
        await course.walk()
    assert launch.calls[-1] == "undo"


async def test_downloads_and_patches_are_never_undone() -> None:
    download = Fake("download")
    stop = Fake("stop", downtime=True, fails=[NotReady("x")])
    course, _ = walk(download, stop)
    with pytest.raises(Restored):
        await course.walk()
    assert "undo" not in download.calls


async def test_hold_leaves_the_node_as_it_failed() -> None:
    stop, launch = Fake("stop", downtime=True), Fake("launch", downtime=True, fails=[NotReady("x")])
    course, _ = walk(stop, launch, on_failure="hold")
    with pytest.raises(NotReady):
        await course.walk()
    assert "undo" not in stop.calls + launch.calls


@pytest.mark.parametrize("where", ["undo", "serves"])
async def test_a_failed_way_back_says_both(where: str) -> None:
    broken = NotReady("old unit is gone", "restore it by hand")
    stop = Fake("stop", downtime=True, undo_fails=broken if where == "undo" else None)
    launch = Fake("launch", downtime=True, fails=[NotReady("hung")])
    course, _ = walk(stop, launch, serves=broken if where == "serves" else None)
    with pytest.raises(RollbackFailed, match="hung; and the way back failed too: old unit is gone"):
        await course.walk()


async def test_a_lost_link_checks_again_and_adopts_what_went_on() -> None:
    class Adopted(Fake):
        async def apply(self, ctx: Context) -> None:
            self.calls.append("apply")
            self.satisfied = True  # the work went on while the link was away
            raise Unreachable("the link was lost")

    download = Adopted("download")
    course, events = walk(download)
    assert await course.walk() == ()
    assert download.calls == ["check", "apply", "check"]
    assert any(isinstance(event, Noted) and "lost" in event.text for event in events)


async def test_a_step_that_told_its_cause_is_not_told_again() -> None:
    launch = Fake("launch", fails=[NotReady("hung")], tells=True)
    course, events = walk(launch)
    with pytest.raises(NotReady):
        await course.walk()
    assert [event.text for event in events if isinstance(event, CauseFound)] == ["told by the step"]


async def test_a_remedy_walks_again_and_the_first_cause_stays_told() -> None:
    launch = Fake("launch", fails=[NotReady("kv")])
    course, _ = walk(Fake("unit", satisfied=True), launch)
    asked: list[str] = []

    async def remedy(ctx: Context, error: RelaunchError) -> bool:
        asked.append(error.message)
        return True

    course.remedy = remedy
    assert await course.walk() == ("launch",)
    assert asked == ["kv"]
    assert launch.calls == ["check", "apply", "check", "apply", "verify"]


async def test_cancellation_passes_through_and_undoes_nothing() -> None:
    stop = Fake("stop", downtime=True)
    launch = Fake("launch", downtime=True, fails=[asyncio.CancelledError()])
    course, _ = walk(stop, launch)
    with pytest.raises(asyncio.CancelledError):
        await course.walk()
    assert "undo" not in stop.calls


def test_the_emitter_cleans_and_redacts_everything_before_anyone_sees_it() -> None:
    seen: list[Event] = []
    emit = Emitter((seen.append,), (Secret("sentinel-secret"),))
    emit(Changed(time=1.0, step="unit", text="\x1b[31msentinel-secret\x1b[0m", diff="+ key sentinel-secret\n"))
    assert "sentinel" not in repr(seen)
    assert "\x1b" not in repr(seen)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (None, ExitCode.DONE),
        (Restored("x"), ExitCode.RESTORED),
        (asyncio.CancelledError(), ExitCode.INTERRUPTED),
        (ZeroDivisionError("defect"), ExitCode.UNEXPECTED),
    ],
)
def test_every_end_has_a_code_and_a_sentence(error: BaseException | None, code: ExitCode) -> None:
    ended, text, remedy = ending(error, (), dry_run=False)
    assert ended == code
    assert text
    if code not in (ExitCode.DONE, ExitCode.RESTORED):
        assert remedy
