"""Which KV cache type a model gets, and which attention backend can hold it: DOMAIN A.1, B.1 and B.2 as code. Pure.

Facts, not the console's own decision: this says what vLLM does, so that a wrong decision of the console fails here with
vLLM's own words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Release = tuple[int, int, int]

_TYPES_0_16 = ("auto", "bfloat16", "fp8", "fp8_ds_mla", "fp8_e4m3", "fp8_e5m2", "fp8_inc")
_TYPES_0_33 = (
    "auto", "bfloat16", "float16", "fp8", "fp8_ds_mla", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "fp8_per_token_head",
    "int4_per_token_head", "int8_per_token_head", "nvfp4", "nvfp4_4over6", "nvfp4_ds_mla", "octave_2bit", "octave_3bit",
    "octave_4bit", "turboquant_3bit_nc", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_k8v4", "ultraquant_4bit",
)  # fmt: skip


def kv_cache_dtypes(release: Release) -> tuple[str, ...]:
    """What `--kv-cache-dtype` takes."""
    if release >= (0, 29, 0):
        return _TYPES_0_33
    return _TYPES_0_16 if release < (0, 18, 0) else ("auto", "bfloat16", "float16", *_TYPES_0_16[2:])


def triton_mla_dtypes(release: Release) -> tuple[str, ...]:
    """`TritonMLABackend.supported_kv_cache_dtypes`: bf16 alone up to 0.17, FP8 too from 0.18 (PR #34597)."""
    if release >= (0, 18, 0):
        return ("auto", "float16", "bfloat16", "fp8", "fp8_e4m3")
    return ("auto", "bfloat16")


class QuantizationRefused(ValueError):
    """The quantization part of the config cannot be used; the text is vLLM's."""


def find_quantization(config: Mapping[str, Any], hf_quant: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The dict that becomes `quantization_config`: config.json's own, else the whole hf_quant_config.json."""
    own = config.get("quantization_config")
    if own is None and config.get("model_type") == "kimi_k25":
        own = (config.get("text_config") or {}).get("quantization_config")
    if own is not None:
        return dict(own)
    return dict(hf_quant) if hf_quant is not None else None


def quantization_method(config: Mapping[str, Any], hf_quant: Mapping[str, Any] | None, release: Release) -> str | None:
    """The detected method, e.g. `modelopt_fp4`; raises `QuantizationRefused` with vLLM's text."""
    quant = find_quantization(config, hf_quant)
    if quant is None:
        nested = (config.get("text_config") or {}).get("quantization_config") or config.get("compression_config")
        return str(nested["quant_method"]) if nested and nested.get("quant_method") else None
    inner = quant.get("quantization") if isinstance(quant.get("quantization"), dict) else None
    algo = (inner or quant).get("quant_algo")
    producer = (quant.get("producer") or {}).get("name")
    method = str(quant.get("quant_method") or "")
    if producer != "modelopt" and not method.startswith("modelopt"):
        return method or None
    if inner is not None and algo == "NVFP4":
        needed = ("group_size", "kv_cache_quant_algo", "exclude_modules")
        missing = [name for name in needed if name not in inner]
        if missing:
            raise QuantizationRefused(
                f"NVFP4 quantization requires the following fields in hf_quant_config.json: {list(needed)}"
            )
    kv = (inner or {}).get("kv_cache_quant_algo")
    if kv is not None and not isinstance(kv, str):
        raise QuantizationRefused(f"kv_cache_quant_algo must be a string, got {type(kv)}")
    match algo:
        case "NVFP4":
            return "modelopt_fp4"
        case "FP8":
            return "modelopt"
        case "MIXED_PRECISION" if release >= (0, 29, 0):
            return "modelopt_mixed"
    raise QuantizationRefused(f"Unknown ModelOpt quant algo: {algo}")


@dataclass(frozen=True)
class KvDtype:
    """The resolved type. `from_checkpoint`: the config asked for it, not the flag. `warning` is vLLM's, if any."""

    dtype: str
    from_checkpoint: bool
    warning: str = ""


def resolve_kv_dtype(
    flag: str, config: Mapping[str, Any], hf_quant: Mapping[str, Any] | None, release: Release
) -> KvDtype:
    """`resolve_kv_cache_dtype_string`: the flag, unless it is `auto`; then the top-level ModelOpt field."""
    if flag != "auto":
        return KvDtype(flag, False)
    quant = find_quantization(config, hf_quant)
    if release < (0, 14, 0) or quant is None:
        return KvDtype("auto", False)
    producer = (quant.get("producer") or {}).get("name")
    method = str(quant.get("quant_method") or ("modelopt" if producer == "modelopt" else ""))
    if not method.startswith("modelopt"):
        return KvDtype("auto", False)
    inner = quant.get("quantization") if isinstance(quant.get("quantization"), dict) else {}
    for holder, key in (
        (inner, "kv_cache_scheme"),
        (quant, "kv_cache_scheme"),
        (inner, "kv_cache_quant_algo"),
        (quant, "kv_cache_quant_algo"),
    ):
        value = (holder or {}).get(key)
        if value is not None:
            return _meaning(value, release)
    return KvDtype("auto", False)


def _meaning(value: object, release: Release) -> KvDtype:
    if isinstance(value, dict):
        if value.get("dynamic") is False and value.get("type") == "float":
            if value.get("num_bits") == 8:
                return KvDtype("fp8_e4m3", True)
            if value.get("num_bits") == 4 and release >= (0, 29, 0):
                return KvDtype("nvfp4", True)
    elif isinstance(value, str):
        if value.upper() == "FP8":
            return KvDtype("fp8_e4m3", True)
        if value.upper() == "NVFP4" and release >= (0, 29, 0):
            return KvDtype("nvfp4", True)
    return KvDtype("auto", False, f"Unknown kv_cache_quant_algo '{value}' in model config. Falling back to 'auto'.")


@dataclass(frozen=True)
class Attention:
    """What a model asks of an attention backend."""

    mla: bool
    sparse: bool
    head_size: int


def attention_of(config: Mapping[str, Any]) -> Attention:
    """The attention family from the model's config."""
    text = config.get("text_config") or config
    rank = text.get("kv_lora_rank")
    if rank is None:
        heads = int(text.get("num_attention_heads") or 1)
        return Attention(False, False, int(text.get("head_dim") or int(text.get("hidden_size") or 0) // heads))
    return Attention(True, text.get("index_topk") is not None, int(rank) + int(text.get("qk_rope_head_dim") or 64))


@dataclass(frozen=True)
class Backend:
    """The chosen backend and those it was chosen out of."""

    name: str
    potential: tuple[str, ...]
    kv_dtype: str
    """What the cache really holds: sparse SM120 makes fp8_ds_mla of `auto`."""


class NoBackend(ValueError):
    """No attention backend fits; the text is vLLM's own, with each backend's reasons."""


_DTYPE = "kv_cache_dtype not supported"
_CAPABILITY = "compute capability not supported"


def select_backend(
    attention: Attention, kv_dtype: str, capability: tuple[int, int], release: Release, *, model_dtype: str = "bfloat16"
) -> Backend:
    """The backend that vLLM picks; raises `NoBackend`. Compute capability 12.x is what the practice node has; for others
    the first backend that DOMAIN B.1 lists for them is named."""
    major = capability[0]
    if not attention.mla:
        potential: tuple[str, ...] = ("FLASHINFER", "TRITON_ATTN", "FLEX_ATTENTION")
        if major != 12:
            potential = ("FLASH_ATTN", *potential)
        return Backend(potential[0], potential, kv_dtype)
    reasons = _reasons(attention, kv_dtype, major, release)
    fitting = tuple(name for name, why in reasons if not why)
    if fitting:
        real = "fp8_ds_mla" if fitting[0] == "FLASHINFER_MLA_SPARSE_SM120" else kv_dtype
        return Backend(fitting[0], fitting, real)
    selector = _selector(attention, kv_dtype, model_dtype, release)
    told = ", ".join(f"{name}: [{', '.join(why)}]" for name, why in reasons)
    raise NoBackend(f"No valid attention backend found for cuda with {selector}. Reasons: {{{told}}}.")


def _reasons(
    attention: Attention, kv_dtype: str, major: int, release: Release
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Every candidate in vLLM's order with why it does not fit; an empty tuple fits."""
    fp8 = kv_dtype.startswith(("fp8", "nvfp4"))
    dense = () if not attention.sparse else ("sparse not supported",)
    triton = (() if kv_dtype in triton_mla_dtypes(release) else (_DTYPE,)) + dense
    if major == 12 and release >= (0, 24, 0):
        sparse: tuple[str, ...] = ()
        if kv_dtype not in ("auto", "fp8", "fp8_e4m3", "fp8_ds_mla"):
            sparse = (_DTYPE,)
        if not attention.sparse:
            sparse = (*sparse, "non-sparse not supported")
        return (("TRITON_MLA", triton), ("FLASHINFER_MLA_SPARSE_SM120", sparse))
    hopper = major == 9
    ten = major == 10
    flash: tuple[str, ...] = (
        ((_DTYPE,) if fp8 else ())
        + dense
        + (() if hopper else (_CAPABILITY, "FlashAttention MLA not supported on this device"))
    )
    flashmla: tuple[str, ...] = (
        dense
        + (() if major in (9, 10) else (_CAPABILITY,))
        + (() if hopper else ("FlashMLA Dense is only supported on Hopper devices.",))
    )
    flashinfer = dense + (() if ten else (_CAPABILITY,))
    flashmla_sparse = (
        ((_DTYPE,) if fp8 and kv_dtype != "fp8_ds_mla" else ())
        + (() if attention.sparse else ("non-sparse not supported",))
        + (() if major in (9, 10) else (_CAPABILITY,))
    )
    order = (
        ("FLASH_ATTN_MLA", flash),
        ("FLASHMLA", flashmla),
        ("FLASHINFER_MLA", flashinfer),
        ("TRITON_MLA", triton),
        ("FLASHMLA_SPARSE", flashmla_sparse),
    )
    if ten:
        return (("FLASHINFER_MLA", flashinfer), ("CUTLASS_MLA", dense), *order[:2], *order[3:])
    return order


def _selector(attention: Attention, kv_dtype: str, model_dtype: str, release: Release) -> str:
    parts = [
        f"head_size={attention.head_size}",
        f"dtype=torch.{model_dtype}",
        f"kv_cache_dtype={kv_dtype}",
        "block_size=None",
        "use_mla=True",
        "has_sink=False",
        f"use_sparse={attention.sparse}",
        "use_mm_prefix=False",
    ]
    if release >= (0, 24, 0):
        parts += [
            "use_per_head_quant_scales=False",
            "has_sliding_window=False",
            "use_non_causal=False",
            "use_batch_invariant=False",
            "use_kv_connector=False",
            "use_pcp=False",
            "use_dcp=False",
        ]
    parts.append("attn_type=decoder" if release < (0, 24, 0) else "attn_type=AttentionType.DECODER")
    return f"AttentionSelectorConfig({', '.join(parts)})"
