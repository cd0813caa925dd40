from __future__ import annotations

import json

import pytest

from console.events import (
    KINDS,
    CauseFound,
    Changed,
    Compared,
    Downtime,
    Event,
    Found,
    Measured,
    Noted,
    Progressed,
    Remedy,
    RunEnded,
    RunStarted,
    StageReached,
    StepChanged,
    decode,
    encode,
)
from console.state import Snapshot, apply, fold

STORY: tuple[Event, ...] = (
    RunStarted(time=1.0, run="0001", verb="redeploy", node="gpu1", profile="kimi", steps=("inspect", "stop", "launch")),
    StepChanged(time=2.0, step="inspect", state="checking"),
    Found(time=2.5, step="inspect", level="warn", rule="p2p", text="P2P is off", table="a  b\n1  2"),
    StepChanged(time=3.0, step="inspect", state="satisfied", detail="8 GPUs", seconds=1.0),
    StepChanged(time=3.0, step="stop", state="checking"),
    Changed(time=3.1, step="stop", text="stop glm-5", diff=""),
    StepChanged(time=3.2, step="stop", state="running"),
    Downtime(time=4.0, state="started"),
    StepChanged(time=5.0, step="stop", state="done", detail="cgroup empty", seconds=2.0),
    StepChanged(time=5.0, step="launch", state="running"),
    StageReached(time=6.0, stage="weights_loading"),
    Progressed(time=7.0, step="launch", text="weights", done=57, total=119, unit="shards", rate=2.0, eta=31.0),
    Measured(
        time=8.0, concurrency=1, input_tokens=128, output_tokens=32, completed=4, failed=0, output_tokens_per_s=60.1,
        total_tokens_per_s=300.0, ttft_ms={"p50": 10.0}, tpot_ms={}, itl_ms={"p99": 17.0},
    ),
    Compared(time=8.4, what="kv-cache", unit="tokens", expected=192_000.0, measured=189_392.0, error=0.0138),
    Noted(time=8.5, text="link lost"),
    CauseFound(time=9.0, step="launch", text="ValueError: no backend", category="kv", ranks=8),
    StepChanged(time=9.0, step="launch", state="failed", detail="ValueError", seconds=4.0),
    Remedy(time=9.1, step="launch", name="kv-flag", text="bf16", diff="-a\n+b", applied=False),
    Downtime(time=10.0, state="ended", seconds=6.0),
    RunEnded(time=11.0, run="0001", code=11, text="restored"),
)  # fmt: skip


def test_every_kind_of_event_survives_json() -> None:
    assert {event.kind for event in STORY} == set(KINDS)
    for event in STORY:
        line = json.dumps(encode(event))
        assert decode(json.loads(line)) == event
        assert next(iter(encode(event))) == "event"


def test_fields_of_a_newer_version_are_dropped_and_unknown_kinds_are_said() -> None:
    assert decode({"event": "note", "time": 1.0, "text": "x", "later": True}) == Noted(time=1.0, text="x")
    with pytest.raises(ValueError, match="unknown event"):
        decode({"event": "from-the-future", "time": 1.0})


def test_the_fold_tells_the_story() -> None:
    snapshot = fold(STORY)
    assert snapshot.version == len(STORY)
    assert [(step.name, step.state) for step in snapshot.steps] == [
        ("inspect", "satisfied"), ("stop", "done"), ("launch", "failed"),
    ]  # fmt: skip
    assert snapshot.downtime_since is None
    assert snapshot.downtime_seconds == 6.0
    assert snapshot.stage == "weights_loading"
    assert snapshot.cause is not None
    assert snapshot.cause.ranks == 8
    assert snapshot.ended is not None
    assert snapshot.findings[0].rule == "p2p"
    launch = snapshot.step("launch")
    assert launch is not None
    assert launch.progress is None
    assert launch.seconds == 4.0


def test_downtime_is_known_while_it_lasts() -> None:
    during = fold(STORY[:9])
    assert during.downtime_since == 4.0
    assert during.downtime_seconds is None


def test_apply_never_changes_what_it_was_given() -> None:
    before = fold(STORY[:3])
    again = fold(STORY[:3])
    apply(before, STORY[3])
    assert before == again


def test_the_first_cause_of_a_step_stands() -> None:
    snapshot = fold(STORY)
    later = apply(snapshot, CauseFound(time=12.0, step="launch", text="RuntimeError: consequence"))
    assert later.cause == snapshot.cause
    assert Snapshot().step("nothing") is None
