"""A failed start in words: what systemd's own codes mean, and what came first when there is a log."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from console.deploy.cause import cause_event, ran, story
from console.node.facts import UnitState
from console.triage import Cause, Diagnosis


def unit(**changes: Any) -> UnitState:
    made = UnitState(
        name="k.service", load="loaded", active="failed", sub="failed", result="exit-code", main_pid=0,
        invocation="a" * 32, cgroup="", fragment="", text=None, need_reload=False, enabled="", restarts=0,
        exit_kind="exited", exit_status=1,
    )  # fmt: skip
    return replace(made, **changes)


def diagnosis(cause: str | None = None) -> Diagnosis:
    found = None if cause is None else Cause(text=cause, line=12, process="Worker_TP0", ranks=8, context=None)
    return Diagnosis(
        outcome="failed", stage="model_loading", engine="vllm", version="0.16.0", cause=found, category="cat",
        meaning="it means", remedy="do this", fix="kv-patch", certain=True, noise=(), lines=20,
    )  # fmt: skip


def test_an_exec_failure_never_started() -> None:
    told = story("crashed", "k.service", unit(exit_status=203), wrote=False)
    assert not told.started
    assert "never started" in told.text
    assert "203/EXEC" in told.text
    assert "bin/vllm" in told.remedy


@pytest.mark.parametrize(
    ("state", "word"),
    [
        (unit(exit_status=217), "217/USER"),
        (unit(result="start-limit-hit", exit_kind="", exit_status=None), "too often"),
        (unit(load="masked", exit_kind="", exit_status=None, result="success"), "masked"),
        (unit(load="not-found", exit_kind="", exit_status=None, result="success"), "not-found"),
        (unit(active="inactive", exit_kind="", exit_status=None, result="success"), "condition"),
        (None, "condition"),
    ],
)
def test_other_ways_of_never_starting(state: UnitState | None, word: str) -> None:
    told = story("never-started", "k.service", state, wrote=False)
    assert word in told.text
    assert told.remedy
    assert not told.started


def test_what_systemd_said_of_it_is_told() -> None:
    said = ("Starting k.service...", "k.service: Failed to locate executable /v/bin/vllm: No such file or directory")
    assert (
        "Failed to locate executable"
        in story("never-started", "k.service", unit(exit_status=203), wrote=False, said=said).text
    )


def test_a_program_that_ran_and_exits_203_crashed() -> None:
    told = story("crashed", "k.service", unit(exit_status=203), wrote=True)
    assert told.started
    assert "exited with code 203" in told.text


def test_a_crash_names_the_end_the_stage_and_the_cause() -> None:
    told = story(
        "crashed", "k.service", unit(), wrote=True, stage="model_loading", diagnosis=diagnosis("ValueError: x")
    )
    assert told.text == "k.service exited with code 1 in stage model_loading: ValueError: x"
    assert told.remedy == "do this"
    killed = unit(exit_kind="killed", exit_status=9, result="oom-kill")
    assert "killed by signal 9 (oom-kill)" in story("crashed", "k.service", killed, wrote=True).text
    assert "started it again" in story("restarted", "k.service", unit(), wrote=True).text


def test_hung_and_silent_say_for_how_long() -> None:
    told = story("hung", "k.service", unit(), wrote=True, stage="nccl_init", seconds=180, diagnosis=diagnosis())
    assert "hung in stage nccl_init: nothing moved for 3:00" in told.text
    assert "wrote nothing for 5:00" in story("no-log", "k.service", unit(), wrote=False, seconds=300).text


def test_ran() -> None:
    assert ran(None, True)
    assert not ran(None, False)
    assert ran(unit(exit_kind="killed", exit_status=11), False)
    assert not ran(unit(exit_status=203), False)
    assert ran(unit(exit_status=2), False)


def test_the_event_carries_what_a_front_end_shows() -> None:
    event = cause_event(diagnosis("ValueError: x"), "launch")
    assert (event.text, event.ranks, event.line, event.process) == ("ValueError: x", 8, 12, "Worker_TP0")
    assert (event.category, event.fix, event.remedy) == ("cat", "kv-patch", "do this")
    assert cause_event(diagnosis(), "launch").text == "it means"
