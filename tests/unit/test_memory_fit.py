"""The memory fit against published figures: DOMAIN A.6 and E.5."""

from __future__ import annotations

import dataclasses

import pytest

from console.checkpoint.fit import Plan, default_utilization, estimate, fit_table, plan_of
from tests.unit import checkpoint_samples as samples

CARD = samples.card(samples.KIMI)
RTX = 97_887 << 20
"""RTX PRO 6000, as nvidia-smi shows it."""
WEIGHTS = 590_850_735_131
"""Bytes of nvidia/Kimi-K2.5-NVFP4's weights; its INT4 sister, which the KV figures are of, has the same size."""


def fit(**changes: object) -> object:
    return estimate(CARD, dataclasses.replace(Plan(8, "0.18.0", "fp8", utilization=0.93), **changes), RTX, WEIGHTS)  # type: ignore[arg-type]


def test_fp8_tokens_as_measured_on_the_box() -> None:
    assert fit().tokens == pytest.approx(449_600, rel=0.03)  # type: ignore[attr-defined]


def test_fp8_tokens_with_decode_context_parallelism() -> None:
    assert fit(context_parallel=8).tokens == pytest.approx(3_600_000, rel=0.03)  # type: ignore[attr-defined]


def test_one_full_request_in_both_dtypes() -> None:
    for dtype, gib in (("bfloat16", 17.2), ("fp8", 8.6)):
        cost = fit(kv_dtype=dtype).cost  # type: ignore[attr-defined]
        assert cost.per_token * 262_144 / 2**30 == pytest.approx(gib, rel=0.01)


def test_a_context_that_does_not_fit_is_told_with_one_that_does() -> None:
    found = fit(kv_dtype="bfloat16")
    assert found.loads is False  # type: ignore[attr-defined]
    assert "set max-model-len to" in found.why  # type: ignore[attr-defined]
    proposal = int(found.why.rsplit(" ", 1)[1].replace(",", ""))  # type: ignore[attr-defined]
    assert fit(kv_dtype="bfloat16", max_model_len=proposal).loads is True  # type: ignore[attr-defined]
    assert {other.label for other in found.alternatives} == {"FP8 KV", "decode-context-parallel-size 8"}  # type: ignore[attr-defined]


def test_weights_that_do_not_fit() -> None:
    found = estimate(CARD, Plan(4, "0.18.0", "fp8"), RTX, WEIGHTS)
    assert found.loads is False
    assert found.why.startswith("does not load")
    assert found.tokens == 0


def test_headers_tell_better_than_the_config() -> None:
    assert estimate(CARD, Plan(8, "0.18.0"), RTX, WEIGHTS, replicated=0).weights == WEIGHTS / 8
    assert estimate(CARD, Plan(8, "0.18.0"), RTX, WEIGHTS).weights > WEIGHTS / 8


def test_unknown_attention_has_no_tokens_and_no_verdict() -> None:
    found = estimate(samples.card(samples.UNKNOWN), Plan(8, "0.18.0"), RTX, 10**9)
    assert (found.tokens, found.loads) == (None, None)


def test_the_default_changes_with_the_version() -> None:
    assert [default_utilization(text) for text in ("0.16.0", "0.18.1", "0.20.0", "0.33.0")] == [0.9, 0.9, 0.92, 0.92]


def test_a_plan_from_flags() -> None:
    flags = {
        "gpu-memory-utilization": 0.93,
        "max_model_len": 131072,
        "decode-context-parallel-size": 8,
        "max-num-seqs": 64,
    }
    plan = plan_of(flags, 8, "0.16.0", "bfloat16")  # type: ignore[arg-type]
    assert plan == Plan(8, "0.16.0", "bfloat16", 8, 1, 0.93, 131072, 64, None)
    assert plan_of({"kv-cache-dtype": "fp8"}, 8, "0.18.0", "auto").kv_dtype == "fp8"


def test_the_table_names_every_part() -> None:
    rows = dict(fit_table(fit(kv_dtype="bfloat16", max_model_len=131072)))  # type: ignore[arg-type]
    assert rows["per token"] == "70,272 bytes"
    assert rows["verdict"] == "fits"
    assert {"GPU memory", "weights", "KV cache", "tokens", "longest request", "with FP8 KV"} <= rows.keys()


@pytest.mark.parametrize(
    ("said", "size"),
    [("128M", 128 << 20), ("128m", 128 * 10**6), ("1.5g", 1_500_000_000), (4096, 4096), ("lots", None)],
)
def test_a_kv_cache_given_as_a_size_is_that_size(said: str | int, size: int | None) -> None:
    """vLLM ignores the utilisation then, and so does the fit."""
    plan = plan_of({"kv-cache-memory-bytes": said}, 8, "0.32.0", "bfloat16")
    assert plan.kv_bytes == size
    if size is not None:
        assert estimate(CARD, plan, RTX, WEIGHTS).kv == size


def test_a_kv_cache_too_large_for_the_gpu_does_not_load() -> None:
    plan = plan_of({"kv-cache-memory-bytes": "200G"}, 8, "0.32.0", "bfloat16")
    found = estimate(CARD, plan, RTX, WEIGHTS)
    assert found.loads is False
