"""Releases as text and as facts: what is kept, what is read back, what is never removed, what counts as serving."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from console.deploy import release as releases_of
from console.deploy.release import (
    Release,
    adoptable,
    already_serving,
    candidate,
    decode_release,
    encode_release,
    last_good,
    next_number,
    releases,
    surplus,
)
from console.deploy.step import Context
from console.errors import CommandFailed, Unreachable
from console.events import Event, Measured, Noted
from console.node.facts import Facts, Paths, UnitState
from console.profile.model import Engine, Model, Profile, Serve, Service

STATE = "/var/lib/relaunch"
TEXT = "[Service]\nExecStart=/v/bin/vllm serve /m\n"
POINT = Measured(
    time=1.0, concurrency=4, input_tokens=8, output_tokens=8, completed=4, failed=0, output_tokens_per_s=10.5,
    total_tokens_per_s=None, ttft_ms={"p99": 1.0}, tpot_ms={}, itl_ms={},
)  # fmt: skip
PROFILE = Profile(
    name="p",
    model=Model(repo="o/m", revision="0" * 40, folder="/m", served_name="kimi"),
    vllm=Engine(version="0.16.0", venv="/v"),
    serve=Serve(tensor_parallel_size=8),
    service=Service(unit="k.service"),
    replaces=("old.service",),
)


def release(number: int, **changes: Any) -> Release:
    made = Release(
        number=number, run="r1", state="good", created=1.0, profile="p", profile_sha256="x", unit="k.service",
        unit_text=TEXT, served_name="kimi", port=8000, model_folder="/m", revision="0" * 40, venv="/v", vllm="0.16.0",
        environment=("NCCL_PROTO",), replaces=("old.service",), invocation="a" * 32, baseline=(POINT,),
    )  # fmt: skip
    return replace(made, **changes)


def unit(**changes: Any) -> UnitState:
    made = UnitState(
        name="k.service", load="loaded", active="active", sub="running", result="success", main_pid=7,
        invocation="a" * 32, cgroup="/x", fragment="/u/k.service", text=TEXT, need_reload=False, enabled="enabled",
        restarts=0,
    )  # fmt: skip
    return replace(made, **changes)


def facts(*kept: Release, good: str | None = None, units: Mapping[str, UnitState] | None = None, **files: str) -> Facts:
    texts = {f"{STATE}/releases/{each.number}.json": encode_release(each).decode() for each in kept}
    if good is not None:
        texts[f"{STATE}/last-good"] = good
    values: dict[str, Any] = {field.name: None for field in dataclasses.fields(Facts)}
    paths = Paths(home="/root", units="/u", cgroup="/sys/fs/cgroup", shm="/dev/shm", state=STATE)
    values |= {"paths": paths, "files": texts | files, "units": units or {}, "expanded": {}, "clock": 5.0}
    return Facts(**values)


def context(known: Facts, monkeypatch: pytest.MonkeyPatch, wanted: str = TEXT) -> Context:
    monkeypatch.setattr(releases_of, "wanted_text", lambda ctx: wanted)
    return Context(None, PROFILE, known, None, None, None)  # type: ignore[arg-type]


def test_a_release_comes_back_as_it_was_written() -> None:
    made = release(3, overlay={"/o/config.json": "d"}, disabled=("old.service",), former=2, downtime_started=9.5)
    data = encode_release(made)
    assert decode_release(data.decode()) == made
    assert encode_release(made) == data


def test_a_newer_release_keeps_what_this_one_knows() -> None:
    data = json.loads(encode_release(release(3)))
    data["colour"] = "red"
    assert decode_release(json.dumps(data)) == release(3)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}", '{"number": "x"}', '{"number": 1, "baseline": 3}'])
def test_what_is_no_release_is_none(text: str) -> None:
    assert decode_release(text) is None


def test_a_cut_off_or_altered_release_is_none() -> None:
    text = encode_release(release(3)).decode()
    assert decode_release(text[:-20]) is None
    assert decode_release(text.replace("/v/bin/vllm", "/w/bin/vllm")) is None


def test_numbers_are_never_used_twice() -> None:
    assert next_number(facts()) == 1
    broken = {f"{STATE}/releases/9.json": "{"}
    known = facts(release(2), release(4), **broken)
    assert [each.number for each in releases(known)] == [2, 4]
    assert next_number(known) == 10


def test_last_good_is_what_the_pointer_says_and_nothing_else() -> None:
    assert last_good(facts(release(1), release(2), good="1\n")) == release(1)
    for pointer in ("", "two", "7", "-1", "²"):
        assert last_good(facts(release(1), good=pointer)) is None
    assert last_good(facts(release(1))) is None


def test_a_release_in_the_wrong_folder_is_not_believed() -> None:
    moved = {f"{STATE}/releases/5.json": encode_release(release(1)).decode()}
    assert releases(facts(**moved)) == ()


def test_retention_keeps_the_last_good_its_former_and_what_runs() -> None:
    kept = [release(number, unit_text=f"{TEXT}# {number}\n") for number in range(1, 12)]
    kept[4] = replace(kept[4], former=2)
    running = {"k.service": unit(text=kept[2].unit_text)}
    gone = surplus(facts(*kept, good="5", units=running), keep=3)
    assert [each.number for each in gone] == [1, 4, 6, 7, 8]


def test_serving_is_the_kept_start_of_the_wanted_text(monkeypatch: pytest.MonkeyPatch) -> None:
    known = facts(release(1), good="1", units={"k.service": unit()})
    assert already_serving(context(known, monkeypatch))


@pytest.mark.parametrize(
    "changes",
    [
        {"active": "failed"},
        {"active": "inactive"},
        {"active": "activating"},
        {"active": "activating", "sub": "auto-restart"},
        {"invocation": "b" * 32},
        {"text": TEXT + "#"},
        {"text": None},
        {"need_reload": True},
    ],
)
def test_anything_else_is_not_serving(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    known = facts(release(1), good="1", units={"k.service": unit(**changes)})
    assert not already_serving(context(known, monkeypatch))


def test_without_pointer_unit_or_same_text_nothing_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not already_serving(context(facts(release(1), units={"k.service": unit()}), monkeypatch))
    assert not already_serving(context(facts(release(1), good="1"), monkeypatch))
    known = facts(release(1), good="1", units={"k.service": unit()})
    assert not already_serving(context(known, monkeypatch, wanted="other"))
    dead = context(known, monkeypatch)
    dead.found["serving"] = False
    assert not already_serving(dead)


def test_a_release_that_a_killed_keep_left_halfway_is_gone_on_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the next one would be called the first, and what it had replaced would be forgotten."""
    halfway = release(2, stopped=("old.service",))
    running = {"k.service": unit()}
    assert candidate(context(facts(release(1, invocation="b" * 32), halfway, units=running), monkeypatch)) == halfway
    assert candidate(context(facts(halfway, good="2", units=running), monkeypatch)) is None, "it was kept"
    assert candidate(context(facts(halfway, units={"k.service": unit(invocation="c" * 32)}), monkeypatch)) is None
    stopped = {"k.service": unit(active="inactive", sub="dead")}
    assert candidate(context(facts(halfway, units=stopped), monkeypatch)) is None, "it ran once, and was gone back from"
    begun = release(3, state="candidate", invocation="")
    assert candidate(context(facts(halfway, begun, units=running), monkeypatch)) == begun


def test_a_start_under_way_is_adopted_and_a_crash_loop_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def adopted(**changes: Any) -> bool:
        return adoptable(context(facts(units={"k.service": unit(**changes)}), monkeypatch))

    assert adopted(active="activating", sub="start")
    assert adopted(invocation="c" * 32)
    assert not adopted(active="activating", sub="auto-restart")
    assert not adopted(active="deactivating")
    assert not adopted(text="other")


def test_a_rewritten_overlay_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = release(1, overlay={"/o/config.json": releases_of.sha256("{}")})
    known = facts(kept, good="1", units={"k.service": unit()})
    same = replace(known, files={**known.files, "/o/config.json": "{}"})
    other = replace(known, files={**known.files, "/o/config.json": '{"a": 1}'})
    assert already_serving(context(same, monkeypatch))
    assert not already_serving(context(other, monkeypatch))


def test_what_a_way_back_cannot_write_down_is_told_and_stops_nothing() -> None:
    told: list[Event] = []
    ctx = cast(Context, SimpleNamespace(emit=told.append))
    with releases_of.in_passing(ctx):
        raise CommandFailed(("write",), 1, "No space left on device")
    assert [event.text for event in told if isinstance(event, Noted)] == [
        "this could not be written down: write ended with code 1: No space left on device"
    ]
    with pytest.raises(Unreachable), releases_of.in_passing(ctx):
        raise Unreachable("the link is gone: what happened is unknown")
