"""Remedies as changed profiles: only what the profile can say, never twice the same, always with a diff."""

from __future__ import annotations

from typing import Any

import pytest

from console.deploy.fix import ProfileEdit, edits_again, fix_for
from console.events import Remedy
from console.profile.model import Engine, Model, Profile, Serve, Service


def profile(**flags: Any) -> Profile:
    return Profile(
        name="p",
        model=Model(repo="o/m", revision="0" * 40, folder="/m", served_name="kimi"),
        vllm=Engine(version="0.16.0", venv="/v"),
        serve=Serve(tensor_parallel_size=8, flags=flags),
        service=Service(unit="k.service"),
    )


def fix(of: Profile, verb: str | None) -> ProfileEdit | None:
    return fix_for(of, verb)


def told(of: Profile, verb: str) -> tuple[Profile, Remedy]:
    """A remedy as a run told it, and the profile with it."""
    edit = fix(of, verb)
    assert edit is not None
    return edit.profile, edit.event(1.0, applied=True)


@pytest.mark.parametrize(
    ("before", "verb", "after"),
    [
        ({"kv-cache-dtype": "fp8"}, "kv-flag", {"kv-cache-dtype": "bfloat16"}),
        ({"kv-cache-dtype": "fp8"}, "kv-patch", {}),
        ({"disable-log-requests": True, "x": 1}, "drop-flag:--disable-log-requests", {"x": 1}),
        ({"swap_space": 4}, "drop-flag:swap-space", {}),
        ({"swap-space": 4}, "drop-flag:--swap-space=4", {}),
        ({"max-model-len": 262144}, "max-model-len:190,123", {"max-model-len": 190080}),
        ({"max_model_len": 9}, "max-model-len:100", {"max-model-len": 100}),
        ({"gpu-memory-utilization": 0.95}, "gpu-memory-utilization:0.93", {"gpu-memory-utilization": 0.93}),
        ({"gpu-memory-utilization": 0.95}, "gpu-memory-utilization:-0.02", {"gpu-memory-utilization": 0.93}),
        ({"gpu-memory-utilization": 0.9}, "gpu-memory-utilization:up", {"gpu-memory-utilization": 0.92}),
        ({}, "gpu-memory-utilization", {"gpu-memory-utilization": 0.88}),
    ],
)
def test_flags(before: dict[str, Any], verb: str, after: dict[str, Any]) -> None:
    edit = fix(profile(**before), verb)
    assert edit is not None
    assert edit.profile.serve.flags == after
    assert edit.diff.startswith("--- p (as written)")
    assert edit.name == verb
    assert edit.text


def test_a_kv_remedy_is_also_a_policy() -> None:
    edit = fix(profile(), "kv-patch")
    assert edit is not None
    assert edit.profile.kv_cache.policy == "bfloat16"
    assert '+kv_cache.policy: "bfloat16"' in edit.diff


def test_the_ready_timeout_is_a_variable_with_a_source() -> None:
    edit = fix(profile(), "ready-timeout")
    assert edit is not None
    variable = edit.profile.environment["VLLM_ENGINE_READY_TIMEOUT_S"]
    assert variable.value == "3600"
    assert variable.source == "relaunch --fix"
    assert edit.event(1.0, applied=False).text.startswith("VLLM_ENGINE_READY_TIMEOUT_S=3600")


@pytest.mark.parametrize(
    "verb",
    [
        None,
        "",
        "reboot",
        "drop-flag:--not-there",
        "drop-flag",
        "max-model-len",
        "max-model-len:many",
        "max-model-len:0",
    ],
)
def test_what_changes_nothing_is_no_fix(verb: str | None) -> None:
    assert fix(profile(a=True), verb) is None


def test_utilisation_stays_within_reason() -> None:
    assert fix(profile(**{"gpu-memory-utilization": 0.51}), "gpu-memory-utilization:-0.02") is None
    assert fix(profile(**{"gpu-memory-utilization": 0.97}), "gpu-memory-utilization:up") is None


def test_a_fix_that_was_made_is_not_offered_again() -> None:
    edit = fix(profile(**{"kv-cache-dtype": "fp8"}), "kv-flag")
    assert edit is not None
    assert fix(edit.profile, "kv-flag") is None


def test_remedies_of_an_earlier_run_are_done_again_in_order() -> None:
    written = profile(**{"kv-cache-dtype": "fp8", "gpu-memory-utilization": 0.95})
    first, flag = told(written, "kv-flag")
    second, memory = told(first, "gpu-memory-utilization:-0.02")
    assert [edit.name for edit in edits_again(written, (flag, memory))] == [flag.name, memory.name]
    assert edits_again(written, (flag, memory))[-1].profile == second


def test_a_remedy_that_the_profile_holds_by_now_is_left_out() -> None:
    written = profile(**{"kv-cache-dtype": "fp8", "gpu-memory-utilization": 0.95})
    first, flag = told(written, "kv-flag")
    _, memory = told(first, "gpu-memory-utilization:-0.02")
    assert [edit.name for edit in edits_again(first, (flag, memory))] == [memory.name]


@pytest.mark.parametrize("now", [0.9, 0.97])
def test_a_remedy_of_lines_that_have_changed_since_is_not_done(now: float) -> None:
    _, memory = told(profile(**{"gpu-memory-utilization": 0.95}), "gpu-memory-utilization:-0.02")
    _, dropped = told(profile(a=1), "drop-flag:a")
    assert edits_again(profile(**{"gpu-memory-utilization": now, "a": 1}), (memory, dropped)) == ()
