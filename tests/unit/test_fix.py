"""Remedies as changed profiles: only what the profile can say, never twice the same, always with a diff."""

from __future__ import annotations

from typing import Any

import pytest

from console.deploy.fix import ProfileEdit, fix_for
from console.profile.model import Engine, Model, Profile, Serve, Service
from console.triage import Diagnosis


def profile(**flags: Any) -> Profile:
    return Profile(
        name="p",
        model=Model(repo="o/m", revision="0" * 40, folder="/m", served_name="kimi"),
        vllm=Engine(version="0.16.0", venv="/v"),
        serve=Serve(tensor_parallel_size=8, flags=flags),
        service=Service(unit="k.service"),
    )


def fix(of: Profile, verb: str | None) -> ProfileEdit | None:
    diagnosis = Diagnosis(
        outcome="failed", stage=None, engine=None, version=None, cause=None, category=None, meaning="", remedy="",
        fix=verb, certain=True, noise=(), lines=0,
    )  # fmt: skip
    return fix_for(of, diagnosis)


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
    assert edit.event(1.0).text.startswith("fix ready-timeout: VLLM_ENGINE_READY_TIMEOUT_S=3600")


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
