"""How many bytes of KV cache a token costs on one GPU. Pure arithmetic over a model card.

MLA caches one latent vector per token and layer, the same on every tensor-parallel rank; grouped-query attention splits
its KV heads over the ranks. Decode context parallelism (DCP) splits the tokens themselves (DOMAIN A.6).
"""

from __future__ import annotations

from dataclasses import dataclass

from console.checkpoint.card import LayerGroup, ModelCard

# bytes per cached element; fp8_ds_mla packs 512 FP8 values, 16 bytes of scales and 64 bfloat16 values into 656 bytes
_ELEMENT = {"bfloat16": 2.0, "float16": 2.0, "float32": 4.0, "fp8": 1.0, "nvfp4": 0.5625}
_SPARSE_FP8 = 656


@dataclass(frozen=True, slots=True)
class KvCost:
    """Bytes on one GPU: for each further token of a request, and once per request (windows of sliding layers)."""

    per_token: float
    per_request: float


def kv_dtype(card: ModelCard, dtype: str) -> str:
    """`auto` as the model's own dtype; FP8's aliases as `fp8`."""
    if dtype == "auto":
        return card.dtype if card.dtype in _ELEMENT else "bfloat16"
    return "fp8" if dtype.startswith("fp8") else dtype if dtype in _ELEMENT else "bfloat16"


def kv_cost(card: ModelCard, dtype: str, *, tensor_parallel: int = 1, context_parallel: int = 1) -> KvCost | None:
    """The KV cost of one token; None when the card does not tell how attention caches."""
    if not card.groups:
        return None
    name = kv_dtype(card, dtype)
    per_token = per_request = 0.0
    for group in card.groups:
        size = _layer_bytes(group, name, card.attention == "sparse-mla", tensor_parallel) * group.count
        if group.kind == "sliding" and group.window:
            per_request += size * group.window
        else:
            per_token += size / context_parallel
    return KvCost(per_token, per_request)


def _layer_bytes(group: LayerGroup, dtype: str, sparse: bool, tensor_parallel: int) -> float:
    if group.kind == "state":
        return 0.0
    if group.kind == "mla":
        latent = _SPARSE_FP8 if sparse and dtype == "fp8" else group.width * _ELEMENT[dtype]
        return latent + group.index
    heads = -(-group.heads // tensor_parallel)  # at least one head per rank: fewer heads than ranks are replicated
    return group.width * heads * _ELEMENT[dtype]
