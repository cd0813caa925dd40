"""The KV decision: every cell of the matrix, the probe over the table, policies, overrides, user rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from console.checkpoint.kv import decide, load_rules
from console.checkpoint.version import parse_version, within
from console.errors import UsageError
from tests.unit import checkpoint_samples as samples

SM120, SM121, HOPPER, B200, ADA = (12, 0), (12, 1), (9, 0), (10, 0), (8, 9)
OLD, WINDOW, NIGHTLY, SEED, LATER, NEW, NEWEST = (
    "0.13.0", "0.16.0", "0.18.0rc1.dev5+gabc1234", "0.16.0rc2.dev313+g1a2b3c4", "0.18.0", "0.24.0", "0.33.0",
)  # fmt: skip


@pytest.mark.parametrize("capability", [SM120, SM121])
@pytest.mark.parametrize(
    ("config", "version", "action", "dtype"),
    [
        # dense MLA: ignored, then fails, then works
        (samples.KIMI, OLD, "none", "auto"),
        (samples.KIMI, "0.14.0", "patch", "bfloat16"),
        (samples.KIMI, WINDOW, "patch", "bfloat16"),
        (samples.KIMI, SEED, "patch", "bfloat16"),
        (samples.KIMI, "0.17.2", "patch", "bfloat16"),
        (samples.KIMI, NIGHTLY, "patch", "bfloat16"),
        (samples.KIMI, LATER, "none", "fp8"),
        (samples.KIMI, "0.23.0", "none", "fp8"),
        (samples.KIMI, NEW, "none", "fp8"),
        (samples.KIMI, NEWEST, "none", "fp8"),
        (samples.HYBRID_MLA, WINDOW, "patch", "bfloat16"),
        (samples.COMPRESSED_MLA, OLD, "patch", "bfloat16"),
        (samples.COMPRESSED_MLA, WINDOW, "patch", "bfloat16"),
        (samples.CLEAN, WINDOW, "none", "auto"),
        # sparse MLA: fails, then FP8 is required
        (samples.SPARSE, OLD, "refuse", "auto"),
        (samples.SPARSE, WINDOW, "refuse", "auto"),
        (samples.SPARSE, "0.20.0", "refuse", "auto"),
        (samples.SPARSE, NEW, "none", "auto"),
        (samples.SPARSE, NEWEST, "none", "auto"),
        # everything else is fine
        (samples.GQA, OLD, "none", "auto"),
        (samples.GQA, WINDOW, "none", "fp8"),
        (samples.GQA, LATER, "none", "fp8"),
        (samples.GQA, NEW, "none", "fp8"),
        (samples.HYBRID, WINDOW, "none", "fp8"),
        (samples.UNKNOWN, WINDOW, "none", "fp8"),
    ],
)
def test_the_matrix_for_sm12x(capability: Any, config: Any, version: str, action: str, dtype: str) -> None:
    decision = decide(samples.card(config), capability, version, None, "auto")
    assert (decision.action, decision.dtype) == (action, dtype)
    assert decision.reason
    assert decision.source


@pytest.mark.parametrize(
    ("capability", "action"), [(HOPPER, "none"), (B200, "none"), (ADA, "patch"), (SM120, "patch"), ((0, 0), "patch")]
)
def test_other_gpus_have_backends_of_their_own(capability: Any, action: str) -> None:
    assert decide(samples.card(samples.KIMI), capability, WINDOW, None, "auto").action == action


def test_sparse_attention_on_hopper_takes_what_it_is_given() -> None:
    assert decide(samples.card(samples.SPARSE), HOPPER, WINDOW, None, "auto").action == "none"


def test_the_field_in_hf_quant_config_counts_where_config_json_has_none() -> None:
    card = samples.card(samples.without_quantization(samples.KIMI), samples.NESTED)
    decision = decide(card, SM120, WINDOW, None, "auto")
    assert decision.action == "patch"
    assert card.read_from == "hf_quant_config.json"


def test_the_probe_beats_the_version() -> None:
    card = samples.card(samples.KIMI)
    new = ("auto", "float16", "bfloat16", "fp8", "fp8_e4m3")
    assert decide(card, SM120, SEED, new, "auto").action == "none"
    assert decide(card, SM120, LATER, ("auto", "bfloat16"), "auto").action == "patch"


@pytest.mark.parametrize(
    ("config", "version", "policy", "action", "flags"),
    [
        (samples.KIMI, WINDOW, "bfloat16", "patch", {}),
        (samples.KIMI, LATER, "bfloat16", "flag", {"kv-cache-dtype": "bfloat16"}),
        (samples.KIMI, OLD, "bfloat16", "none", {}),
        (samples.CLEAN, LATER, "bfloat16", "none", {}),
        (samples.KIMI, WINDOW, "fp8", "refuse", {}),
        (samples.KIMI, LATER, "fp8", "none", {}),
        (samples.CLEAN, LATER, "fp8", "flag", {"kv-cache-dtype": "fp8"}),
        (samples.GQA, WINDOW, "fp8", "none", {}),
        (samples.GQA, WINDOW, "bfloat16", "patch", {}),
        (samples.GQA, NEW, "bfloat16", "flag", {"kv-cache-dtype": "bfloat16"}),
        (samples.COMPRESSED, WINDOW, "bfloat16", "patch", {}),
        (samples.COMPRESSED, "0.32.0", "bfloat16", "patch", {}),
        (samples.COMPRESSED, NEWEST, "bfloat16", "flag", {"kv-cache-dtype": "bfloat16"}),
        (samples.SPARSE, NEW, "bfloat16", "refuse", {}),
        (samples.SPARSE, NEW, "fp8", "none", {}),
    ],
)
def test_policies(config: Any, version: str, policy: Any, action: str, flags: dict[str, str]) -> None:
    decision = decide(samples.card(config), SM120, version, None, policy)
    assert (decision.action, dict(decision.flags)) == (action, flags)
    if action == "refuse":
        assert decision.remedy


def test_a_patch_that_would_break_is_said_to() -> None:
    assert decide(samples.card(samples.SPARSE), SM120, NEW, None, "bfloat16").forbids_patch
    assert not decide(samples.card(samples.SPARSE), SM120, WINDOW, None, "auto").forbids_patch


def test_the_flag_is_an_alternative_unless_the_checkpoint_beats_it() -> None:
    assert "--kv-cache-dtype" in decide(samples.card(samples.KIMI), SM120, WINDOW, None, "auto").alternatives[0]
    beaten = decide(samples.card(samples.COMPRESSED_MLA), SM120, WINDOW, None, "auto")
    assert not any("--kv-cache-dtype" in text for text in beaten.alternatives)


def test_nvfp4_kv_on_sm120_is_patched() -> None:
    config = {
        **samples.KIMI,
        "quantization_config": {**samples.KIMI["quantization_config"], "kv_cache_scheme": "NVFP4"},
    }
    assert decide(samples.card(config), SM120, NEWEST, None, "auto").action == "patch"
    assert decide(samples.card(config), SM120, WINDOW, None, "auto").action == "none", "0.16 does not know NVFP4 KV"


def test_the_cost_is_told_in_bytes_and_context() -> None:
    decision = decide(samples.card(samples.KIMI), SM120, WINDOW, None, "auto")
    assert decision.bytes_per_token == 70_272
    assert decision.cost == (
        "a token costs 70,272 bytes of KV cache per GPU; FP8 would cost 35,136; "
        "one request of 262,144 tokens needs 17.2 GiB"
    )
    assert decide(samples.card(samples.UNKNOWN), SM120, WINDOW, None, "auto").bytes_per_token is None


def test_rules_of_the_user_come_first(tmp_path: Path) -> None:
    own = tmp_path / "rules.yaml"
    own.write_text(
        "rules:\n- id: mine\n  when: {attention: dense-mla, vllm: ['==0.16.0']}\n"
        "  then: {action: flag, dtype: bfloat16, flags: {kv-cache-dtype: bfloat16}}\n  reason: our own build of {vllm}\n"
    )
    decision = decide(samples.card(samples.KIMI), SM120, WINDOW, None, "auto", rules=load_rules(own))
    assert (decision.rule, decision.action, decision.reason) == ("mine", "flag", "our own build of 0.16.0")
    assert decide(samples.card(samples.KIMI), SM120, LATER, None, "auto", rules=load_rules(own)).rule == "fp8-works"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rules: [{id: x}]", "needs id, when, then and reason"),
        ("rules: [{id: x, when: {colour: red}, then: {action: none, dtype: auto}, reason: y}]", "unknown keys colour"),
        ("rules: [{id: x, when: {}, then: {action: maybe, dtype: auto}, reason: y}]", "action must be"),
        ("rules: {a: 1}", "rules must be a list"),
        ("rules: [", "rules.yaml"),
    ],
)
def test_rules_that_cannot_be_used_are_named(tmp_path: Path, text: str, words: str) -> None:
    own = tmp_path / "rules.yaml"
    own.write_text(text)
    with pytest.raises(UsageError, match=words):
        load_rules(own)


def test_every_shipped_rule_can_be_reached_and_names_its_source() -> None:
    rules = load_rules().rules
    assert len({rule["id"] for rule in rules}) == len(rules)
    assert all(rule["source"] for rule in rules)
    seen = set()
    configs = [samples.KIMI, samples.CLEAN, samples.SPARSE, samples.GQA, samples.COMPRESSED]
    nvfp4 = {**samples.KIMI, "quantization_config": {**samples.KIMI["quantization_config"], "kv_cache_scheme": "NVFP4"}}
    early = {**samples.HYBRID_MLA, "quantization_config": {**samples.KIMI["quantization_config"]}}
    for config in (*configs, nvfp4, early):
        for capability in (SM120, HOPPER):
            for version in (OLD, WINDOW, LATER, NEW, NEWEST):
                for policy in ("auto", "bfloat16", "fp8"):
                    seen.add(decide(samples.card(config), capability, version, None, policy).rule)  # type: ignore[arg-type]
    assert seen == {rule["id"] for rule in rules}


@pytest.mark.parametrize(
    ("text", "release", "pre"),
    [
        ("0.16.0", (0, 16, 0), False),
        ("v0.33", (0, 33), False),
        ("0.16.0rc2.dev313+g1a2b3c4", (0, 16, 0), True),
        ("0.18.0.dev7", (0, 18, 0), True),
        ("0.32.0+cpu", (0, 32, 0), False),
        ("0.11.0.post1", (0, 11, 0), False),
    ],
)
def test_versions(text: str, release: tuple[int, ...], pre: bool) -> None:
    version = parse_version(text)
    assert (version.release, version.pre) == (release, pre)


def test_a_pre_release_is_older_than_its_release_unless_told() -> None:
    dev = parse_version("0.18.0rc1.dev5")
    assert not within(dev, (">=0.18",))
    assert within(dev, (">=0.18.dev", "<0.18", ">0.17.9"))
    assert within(parse_version("0.18.0"), (">=0.18", "<=0.18", "==0.18.0"))
    for bad in ("nightly", "", "0.16 0"):
        with pytest.raises(UsageError):
            parse_version(bad)
    with pytest.raises(UsageError):
        within(dev, ("~=0.18",))
