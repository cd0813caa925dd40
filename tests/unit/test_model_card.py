"""What a checkpoint is, and which KV field vLLM reads."""

from __future__ import annotations

from typing import Any

import pytest

from console.checkpoint.card import LayerGroup, effective_kv
from console.checkpoint.kvsize import kv_cost
from tests.unit import checkpoint_samples as samples


@pytest.mark.parametrize(
    ("config", "attention", "groups"),
    [
        (samples.KIMI, "dense-mla", [LayerGroup("mla", 61, 576)]),
        (samples.SPARSE, "sparse-mla", [LayerGroup("mla", 61, 576, index=132)]),
        (samples.GQA, "gqa", [LayerGroup("full", 64, 256, 8)]),
        (samples.HYBRID, "hybrid", [LayerGroup("full", 1, 256, 8), LayerGroup("state", 3, 0)]),
        (samples.HYBRID_MLA, "hybrid", [LayerGroup("mla", 1, 576), LayerGroup("state", 3, 0)]),
        (samples.UNKNOWN, "unknown", []),
        (
            {**samples.GQA, "num_hidden_layers": 3, "sliding_window": 1024, "layer_types": ["sliding_attention"] * 2 + ["full_attention"]},
            "hybrid",
            [LayerGroup("full", 1, 256, 8), LayerGroup("sliding", 2, 256, 8, 1024)],
        ),
        (
            {**samples.GQA, "num_hidden_layers": None, "hybrid_override_pattern": "M-M*E"},
            "hybrid",
            [LayerGroup("full", 1, 256, 8), LayerGroup("state", 2, 0)],
        ),
    ],
)  # fmt: skip
def test_attention_families(config: dict[str, Any], attention: str, groups: list[LayerGroup]) -> None:
    card = samples.card(config)
    assert card.attention == attention
    assert list(card.groups) == groups


def test_figures_come_from_the_language_model() -> None:
    card = samples.card(samples.KIMI)
    assert (card.layers, card.hidden, card.kv_lora_rank, card.max_positions) == (61, 7168, 512, 262144)
    assert (card.method, card.algorithm, card.dtype) == ("modelopt", "NVFP4", "bfloat16")


@pytest.mark.parametrize(
    ("config", "hf_quant", "release", "dtype", "path"),
    [
        (samples.KIMI, None, (0, 16), "fp8", "kv_cache_scheme"),
        (samples.KIMI, None, (0, 13), None, None),
        (samples.without_quantization(samples.KIMI), samples.NESTED, (0, 16), "fp8", "quantization.kv_cache_quant_algo"),
        (samples.without_quantization(samples.KIMI), None, (0, 16), None, None),
        (samples.CLEAN, samples.NESTED, (0, 33), None, None),
        (samples.COMPRESSED, None, (0, 13), "fp8", "kv_cache_scheme"),
        ({**samples.GQA, "quantization_config": {"quant_method": "fp8", "kv_cache_quant_algo": "FP8"}}, None, (0, 33), None, None),
        ({**samples.GQA, "quantization_config": {"quant_method": "modelopt", "kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": True}}}, None, (0, 33), None, "kv_cache_scheme"),
        ({**samples.GQA, "quantization_config": {"quant_method": "modelopt", "kv_cache_quant_algo": "nvfp4"}}, None, (0, 33), "nvfp4", "kv_cache_quant_algo"),
        ({**samples.GQA, "quantization_config": {"quant_method": "modelopt", "kv_cache_quant_algo": "nvfp4"}}, None, (0, 16), None, "kv_cache_quant_algo"),
        ({"text_config": {**samples.GQA}}, None, (0, 16), "fp8", "kv_cache_scheme"),
    ],
)  # fmt: skip
def test_the_field_that_vllm_reads(
    config: Any, hf_quant: Any, release: Any, dtype: str | None, path: str | None
) -> None:
    reading = effective_kv(samples.card(config, hf_quant), release)
    assert (reading.dtype, reading.path) == (dtype, path)
    assert reading.why


def test_files_that_disagree_are_reported_with_the_one_that_counts() -> None:
    warnings = samples.card(samples.CLEAN, samples.NESTED).warnings
    assert warnings == (
        "the files disagree: config.json sets no KV quantization, hf_quant_config.json sets KV quantization; "
        "vLLM reads config.json",
    )
    assert samples.card(samples.KIMI, samples.NESTED).warnings == ()


def test_bytes_per_token() -> None:
    kimi = samples.card(samples.KIMI)
    assert kv_cost(kimi, "auto", tensor_parallel=8).per_token == 70_272  # type: ignore[union-attr]
    assert kv_cost(kimi, "fp8_e4m3", tensor_parallel=8).per_token == 35_136  # type: ignore[union-attr]
    assert kv_cost(kimi, "bfloat16", tensor_parallel=8, context_parallel=8).per_token == 8_784  # type: ignore[union-attr]
    gqa = samples.card(samples.GQA)
    assert kv_cost(gqa, "bfloat16").per_token == 64 * 256 * 8 * 2  # type: ignore[union-attr]
    assert kv_cost(gqa, "bfloat16", tensor_parallel=16).per_token == 64 * 256 * 2, "one head per rank at least"  # type: ignore[union-attr]
    assert kv_cost(samples.card(samples.SPARSE), "fp8").per_token == 61 * (656 + 132)  # type: ignore[union-attr]
    assert kv_cost(samples.card(samples.UNKNOWN), "fp8") is None
