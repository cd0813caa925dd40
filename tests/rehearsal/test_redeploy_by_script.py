"""Whole redeploys on the practice node, by the engine that `--script` runs, with every fault that a rehearsal can have."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from console.deploy.script import load_script
from console.deploy.store import open_store
from console.engine import Engine, RunOptions, agree
from console.events import CauseFound, Downtime, Event, Measured, Noted, Remedy, RunEnded, StepChanged
from console.node import systemd
from console.node.ssh import SshNode
from console.profile.load import find_profile
from console.profile.model import Profile
from console.rehearsal.practice import Practice
from tests.rehearsal.conftest import log_in
from tests.rehearsal.launch_node import old_serves

NewPractice = Callable[..., AbstractAsyncContextManager[Practice]]
OLD, NEW = "vllm-glm5.service", "vllm-kimi.service"

pytestmark = pytest.mark.timeout(240)


@dataclass
class Told:
    """What a run said, and what stands on the node afterwards."""

    end: RunEnded
    events: list[Event]
    serving: dict[str, str] = field(default_factory=dict)

    def of(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def states(self) -> dict[str, str]:
        return {event.step: event.state for event in self.of(StepChanged)}

    def __str__(self) -> str:
        lines = [f"{event.step} {event.state} {event.detail}" for event in self.of(StepChanged) if event.detail]
        return "\n".join([*lines, f"cause: {[event.text for event in self.of(CauseFound)]}", str(self.end)])


@asynccontextmanager
async def at_work(practice: Practice, **options: Any) -> AsyncIterator[SshNode]:
    """The node as an operator finds it: logged in, the old model serving."""
    async with log_in(practice, **options) as node:
        await old_serves(node)
        yield node


def rehearsed(practice: Practice) -> Profile:
    profile = find_profile("rehearsal")
    return profile.model_copy(update={"model": profile.model.model_copy(update={"endpoint": practice.hub})})


async def run(practice: Practice, node: SshNode, name: str = "redeploy", *, fix: bool = False, **changes: Any) -> Told:
    events: list[Event] = []
    with open_store() as store:
        engine = Engine(node, rehearsed(practice).model_copy(update=changes), store)
        engine.subscribe(events.append)
        end = await engine.run(load_script(name), RunOptions(confirm=agree, rehearsal=True, fix=fix))
        assert [event for event in store.events(end.run)] == events, "what the store replays is not what was told"
    serving = {unit: (await systemd.unit_state(node, unit)).active for unit in (OLD, NEW)}
    return Told(end, events, serving)


async def test_the_whole_job_and_again(new_practice: NewPractice) -> None:
    async with new_practice() as practice, at_work(practice) as node:
        told = await run(practice, node)
        assert told.end.code == 0, told
        assert told.serving == {OLD: "inactive", NEW: "active"}
        assert [event.state for event in told.of(Downtime)] == ["started", "ended"]
        assert [event.concurrency for event in told.of(Measured)] == [1, 4]
        assert all(event.failed == 0 and event.output_tokens_per_s for event in told.of(Measured))
        before = await systemd.unit_state(node, NEW)

        again = await run(practice, node)
        assert again.end.code == 0, again
        assert set(again.states().values()) == {"satisfied"}, again
        assert "nothing was changed" in again.end.text
        after = await systemd.unit_state(node, NEW)
        assert (after.invocation, after.main_pid) == (before.invocation, before.main_pid)


# fault: exit code, the step that fails, words of the first cause, words of the remedy
FAILING = {
    "bad-flag": (11, "launch", "unrecognized arguments", "flag"),
    "oom": (11, "launch", "CUDA out of memory", "utilization"),
    "never-starts": (11, "launch", "203/EXEC", ""),
    "hang": (11, "launch", "hung in stage", ""),
    "port-in-use": (11, "launch", "Address already in use", "port"),
    "garbage": (11, "ready", "nonsense", ""),
    "orphan": (11, "drain", "GPU 3", ""),
    "missing-shard": (6, "shards", "model-00060-of-00119", ""),
    "disk-full": (6, "download", "disk is full", ""),
}


@pytest.mark.parametrize("fault", FAILING)
async def test_a_fault_ends_as_the_profile_says(fault: str, new_practice: NewPractice) -> None:
    code, step, cause, remedy = FAILING[fault]
    async with new_practice(faults=(fault,)) as practice, at_work(practice) as node:
        told = await run(practice, node)
        assert told.end.code == code, told
        assert told.states()[step] == "failed", told
        first = told.of(CauseFound)[0]
        assert cause in first.text, told
        assert first.remedy, told
        assert remedy.lower() in first.remedy.lower(), told
        assert told.serving == {OLD: "active", NEW: "inactive"} or told.serving == {OLD: "active", NEW: "failed"}, told


@pytest.mark.parametrize("fault", ["stall", "drop", "slow-stop"])
async def test_a_fault_that_is_survived(fault: str, new_practice: NewPractice) -> None:
    async with new_practice(faults=(fault,)) as practice, at_work(practice) as node:
        told = await run(practice, node)
        assert told.end.code == 0, told
        assert told.serving == {OLD: "inactive", NEW: "active"} or told.serving == {OLD: "failed", NEW: "active"}, told
        if fault == "drop":
            assert any("link was lost" in event.text for event in told.of(Noted)), told


async def test_hold_leaves_the_node_as_it_failed(new_practice: NewPractice) -> None:
    async with new_practice(faults=("garbage",)) as practice, at_work(practice) as node:
        told = await run(practice, node, on_failure="hold")
        assert told.end.code == 9, told
        assert told.serving[NEW] == "active"
        assert told.serving[OLD] != "active"


@pytest.mark.parametrize("fault", ["bad-flag", "oom"])
async def test_a_known_remedy_is_applied_on_request(fault: str, new_practice: NewPractice) -> None:
    async with new_practice(faults=(fault,)) as practice, at_work(practice) as node:
        told = await run(practice, node, fix=True)
        assert told.end.code == 0, told
        assert told.serving[NEW] == "active"
        assert told.of(CauseFound), "the cause is told although it was mended"


async def test_the_remedy_of_a_failed_run_is_applied_first_by_the_next(
    new_practice: NewPractice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELAUNCH_PRACTICE_PACE", json.dumps({"load": 0.3, "tokens": 0.0, "install": 0.0, "hub": 0.0}))
    async with new_practice(faults=("fp8-kv",)) as practice, at_work(practice) as node:
        told = await run(practice, node)
        assert (told.end.code, told.states()["launch"], told.states()["rollback"]) == (11, "failed", "done"), told
        first = told.of(CauseFound)[0]
        assert "No valid attention backend" in first.text, told
        assert "bfloat16" in first.remedy, told
        (found,) = told.of(Remedy)
        assert (found.name, found.applied) == ("kv-flag", False), told
        assert '+serve.flags.kv-cache-dtype: "bfloat16"' in found.diff

        mended = await run(practice, node, fix=True)
        assert mended.end.code == 0, mended
        assert mended.serving == {OLD: "inactive", NEW: "active"}
        assert [(remedy.name, remedy.applied) for remedy in mended.of(Remedy)] == [("kv-flag", True)]
        launches = [event.state for event in mended.of(StepChanged) if event.step == "launch"]
        assert launches == ["checking", "running", "verifying", "done"], "it is started once, with the remedy"

        back = await run(practice, node, "rollback")
        assert back.end.code == 0, back
        assert back.serving == {OLD: "active", NEW: "inactive"}, "what came up with a remedy is what is left"

        stopped = await run(practice, node, "stop")
        assert stopped.end.code == 0, stopped
        assert stopped.serving == {OLD: "inactive", NEW: "inactive"}
        assert "cgroup empty" in str(stopped), stopped
        nothing = await run(practice, node, "stop")
        assert nothing.end.code == 0, nothing
        assert set(nothing.states().values()) == {"satisfied"}, nothing
        assert "nothing serves" in str(nothing)


async def test_a_plan_and_a_read_only_session_change_nothing(new_practice: NewPractice) -> None:
    async with new_practice() as practice, at_work(practice, read_only=True) as node:
        told = await run(practice, node)
        assert told.end.code == 0, told
        assert told.serving[OLD] == "active"
        assert "nothing has been changed" in told.end.text
        needed = [step for step, state in told.states().items() if state == "needed"]
        assert {"download", "patch", "unit", "stop", "launch"} <= set(needed)
