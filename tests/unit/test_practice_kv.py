"""The stand-in vLLM's KV decision is vLLM's: DOMAIN A.1, B.1 and B.2."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from console.rehearsal.vllm.standin import kv

FP8 = {"dynamic": False, "num_bits": 8, "type": "float"}
TEXT = {"num_hidden_layers": 61, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "num_attention_heads": 64}
QUANT = {"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_scheme": FP8, "producer": {"name": "modelopt"}}
KIMI: dict[str, Any] = {"model_type": "kimi_k25", "text_config": TEXT, "quantization_config": QUANT}
DSA: dict[str, Any] = {**TEXT, "index_topk": 2048, "quantization_config": QUANT}
GQA: dict[str, Any] = {"num_attention_heads": 64, "hidden_size": 8192, "quantization_config": QUANT}
SM120 = (12, 0)


def starts(config: dict[str, Any], release: tuple[int, int, int], flag: str = "auto") -> bool:
    dtype = kv.resolve_kv_dtype(flag, config, None, release).dtype
    try:
        kv.select_backend(kv.attention_of(config), dtype, SM120, release)
    except kv.NoBackend:
        return False
    return True


@pytest.mark.parametrize(
    ("release", "dense", "sparse"),
    [
        ((0, 13, 0), True, False),
        ((0, 14, 0), False, False),
        ((0, 16, 0), False, False),
        ((0, 17, 0), False, False),
        ((0, 18, 0), True, False),
        ((0, 20, 0), True, False),
        ((0, 24, 0), True, True),
        ((0, 33, 0), True, True),
    ],
)
def test_matrix_on_sm120(release: tuple[int, int, int], dense: bool, sparse: bool) -> None:
    assert starts(KIMI, release) is dense
    assert starts(DSA, release) is sparse
    assert starts(GQA, release)


@pytest.mark.parametrize("release", [(0, 16, 0), (0, 18, 0), (0, 33, 0)])
def test_dense_mla_starts_with_bfloat16_by_flag_and_by_null(release: tuple[int, int, int]) -> None:
    patched = copy.deepcopy(KIMI)
    patched["quantization_config"]["kv_cache_scheme"] = None
    assert starts(KIMI, release, "bfloat16")
    assert starts(patched, release)


def test_sparse_mla_on_sm120_refuses_bfloat16() -> None:
    assert not starts(DSA, (0, 33, 0), "bfloat16")
    backend = kv.select_backend(kv.attention_of(DSA), "auto", SM120, (0, 33, 0))
    assert (backend.name, backend.kv_dtype) == ("FLASHINFER_MLA_SPARSE_SM120", "fp8_ds_mla")


def test_the_error_names_every_backend_with_its_reasons() -> None:
    with pytest.raises(kv.NoBackend) as caught:
        kv.select_backend(kv.attention_of(KIMI), "fp8_e4m3", SM120, (0, 16, 0))
    assert str(caught.value) == (
        "No valid attention backend found for cuda with AttentionSelectorConfig(head_size=576, dtype=torch.bfloat16, "
        "kv_cache_dtype=fp8_e4m3, block_size=None, use_mla=True, has_sink=False, use_sparse=False, use_mm_prefix=False, "
        "attn_type=decoder). Reasons: {FLASH_ATTN_MLA: [kv_cache_dtype not supported, compute capability not supported, "
        "FlashAttention MLA not supported on this device], FLASHMLA: [compute capability not supported, FlashMLA Dense is "
        "only supported on Hopper devices.], FLASHINFER_MLA: [compute capability not supported], TRITON_MLA: "
        "[kv_cache_dtype not supported], FLASHMLA_SPARSE: [kv_cache_dtype not supported, non-sparse not supported, compute "
        "capability not supported]}."
    )


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (FP8, "fp8_e4m3"),
        ("FP8", "fp8_e4m3"),
        ("fp8", "fp8_e4m3"),
        (None, "auto"),
        ("NVFP4", "auto"),
        ({**FP8, "dynamic": True}, "auto"),
        ({"dynamic": False, "num_bits": 8}, "auto"),
    ],
)
def test_values_of_the_field(value: object, dtype: str) -> None:
    config = {"quantization_config": {**QUANT, "kv_cache_scheme": value}}
    assert kv.resolve_kv_dtype("auto", config, None, (0, 16, 0)).dtype == dtype


def test_the_separate_file_counts_only_without_an_own_dict() -> None:
    nested = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}}
    assert kv.resolve_kv_dtype("auto", {}, nested, (0, 16, 0)).dtype == "fp8_e4m3"
    own = {"quantization_config": {**QUANT, "kv_cache_scheme": None}}
    assert kv.resolve_kv_dtype("auto", own, nested, (0, 16, 0)).dtype == "auto"
    native = {"quantization_config": {"quant_method": "fp8", "kv_cache_scheme": FP8}}
    assert kv.resolve_kv_dtype("auto", native, None, (0, 16, 0)).dtype == "auto"


def test_a_deleted_key_is_refused_and_null_is_not() -> None:
    fields = {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": []}
    deleted = {"producer": {"name": "modelopt"}, "quantization": fields}
    with pytest.raises(kv.QuantizationRefused, match=r"requires the following fields in hf_quant_config\.json"):
        kv.quantization_method({}, deleted, (0, 16, 0))
    null = {"producer": {"name": "modelopt"}, "quantization": {**fields, "kv_cache_quant_algo": None}}
    assert kv.quantization_method({}, null, (0, 16, 0)) == "modelopt_fp4"
