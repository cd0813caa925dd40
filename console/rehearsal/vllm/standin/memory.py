"""How much GPU memory a start takes per rank, and what is left for the KV cache. Pure arithmetic, memory in GiB.

The practice checkpoint is tiny; the figures are those of the real model (540 GB over 8 GPUs), so that an operator sees what
a real box shows. Bytes per token: DOMAIN A.6.
"""

from __future__ import annotations

from dataclasses import dataclass

from .model import Model

_WEIGHTS = {"kimi_k25": 67.94, "kimi_k2": 67.94, "glm_moe_dsa": 56.62, "glm": 56.62}
CONTEXT_GIB = 0.61
"""What a CUDA context alone holds."""
_ACTIVATIONS = 3.42
_NON_TORCH = 1.08
GRAPHS_GIB = 1.37
_DTYPE_BYTES = {"auto": 2.0, "bfloat16": 2.0, "float16": 2.0, "fp8_ds_mla": 656 / 576, "nvfp4": 0.5625}


@dataclass(frozen=True)
class Budget:
    """Memory of one rank in GiB and tokens of cache."""

    total: float
    wanted: float
    weights: float
    kv: float
    per_token: float
    """Bytes per token."""
    tokens: int


def token_bytes(model: Model, kv_dtype: str, ranks: int, dcp: int = 1) -> float:
    """Bytes of cache per token and GPU."""
    size = _DTYPE_BYTES.get(kv_dtype, 1.0)
    text = model.text
    if model.attention.mla:
        width = float(model.attention.head_size)
        if model.attention.sparse and kv_dtype != "fp8_ds_mla":
            width += 66.0  # the indexer's keys
        return model.layers * width * size / dcp
    heads = max(1, int(text.get("num_key_value_heads") or 1) // ranks)
    return model.layers * 2 * heads * model.attention.head_size * size


def weights_gib(model: Model, shard_bytes: int, ranks: int) -> float:
    """Weights per rank: the real model's where it is known, else what the shards hold."""
    known = _WEIGHTS.get(model.family)
    return known * 8 / ranks if known else shard_bytes / ranks / 2**30


def budget(
    model: Model, kv_dtype: str, *, total_mib: int, utilization: float, ranks: int, dcp: int, shard_bytes: int,
    kv_bytes: int | None = None, profile_graphs: bool = False,
) -> Budget:  # fmt: skip
    """What fits. `kv_bytes` is `--kv-cache-memory-bytes`; `profile_graphs`: graph memory is set aside (from 0.20 on)."""
    total = (total_mib - 638) / 1024
    wanted = total * utilization
    weights = weights_gib(model, shard_bytes, ranks)
    kv = wanted - weights - _ACTIVATIONS - _NON_TORCH - (GRAPHS_GIB if profile_graphs else 0.0)
    if kv_bytes is not None:
        kv = kv_bytes / 2**30
    per_token = token_bytes(model, kv_dtype, ranks, dcp)
    block = 64 if model.attention.mla else 16
    tokens = int(max(kv, 0.0) * 2**30 / max(per_token, 1.0)) // block * block
    return Budget(total, wanted, weights, kv, per_token, tokens)
