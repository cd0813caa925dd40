"""Will the model fit: weights, reserves and KV cache of one GPU, known before a load that takes a quarter of an hour.

Pure arithmetic. vLLM takes `gpu_memory_utilization` of the memory that CUDA shows, subtracts weights, what is not
torch's, the peak of activations and (from 0.20 on) CUDA graphs, and gives the rest to the KV cache (DOMAIN A.6, D.8, D.12).
The reserves are calibrated on published figures for Kimi on 8 x RTX PRO 6000; after a real launch the log's own numbers
are compared with the estimate.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from console.checkpoint.card import ModelCard
from console.checkpoint.kvsize import KvCost, kv_cost, kv_dtype
from console.checkpoint.version import parse_version, within
from console.profile.model import FlagValue
from console.text import gib

GIB = float(2**30)
DRIVER_SHARE = 0.62 * GIB
"""What the driver keeps of a card: 97,887 MiB by nvidia-smi are 94.97 GiB for CUDA."""
OUTSIDE_TORCH = 1.1 * GIB
"""CUDA context, NCCL buffers, workspaces of a rank among eight."""
ACTIVATION_WIDTHS = 10
"""Peak activations in widths of the hidden state, per token of a full batch, in bfloat16."""
GRAPHS = 0.5 * GIB
"""Captured decode graphs; counted by vLLM from 0.20 on, before that they come out of what utilisation leaves."""
DEFAULT_BATCHED_TOKENS = 8192
DEFAULT_SEQUENCES = 256


@dataclass(frozen=True, slots=True)
class Plan:
    """How the model will be served, as far as memory goes. `utilization` None: the version's default."""

    tensor_parallel: int
    vllm: str
    kv_dtype: str = "auto"
    context_parallel: int = 1
    pipeline_parallel: int = 1
    utilization: float | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    kv_bytes: int | None = None
    """--kv-cache-memory-bytes: the KV cache as a size, which leaves utilisation out of account."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """What another choice would change: `FP8 KV` -> tokens."""

    label: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Fit:
    """The memory of one GPU, in bytes. `tokens` is the KV cache's size in tokens, `longest` the longest single request,
    `requests` how many of `wanted` tokens fit at once. `loads`: weights fit and one request of `wanted` tokens does."""

    gpu: int
    utilization: float
    budget: float
    weights: float
    reserve: float
    kv: float
    dtype: str
    cost: KvCost | None
    tokens: int | None
    wanted: int | None
    longest: int | None
    requests: float | None
    loads: bool | None
    why: str
    alternatives: tuple[Alternative, ...]
    notes: tuple[str, ...]


def default_utilization(vllm: str) -> float:
    """0.9 up to 0.18, 0.92 from 0.20 on (DOMAIN E.2); a default changes with an upgrade."""
    return 0.92 if within(parse_version(vllm), (">=0.20",)) else 0.9


def plan_of(flags: Mapping[str, FlagValue], tensor_parallel: int, vllm: str, kv: str) -> Plan:
    """The plan in a profile's serve flags; names with dashes or underscores."""
    named = {name.replace("_", "-"): value for name, value in flags.items()}

    def number(name: str) -> int | None:
        value = named.get(name)
        return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0 else None

    share = named.get("gpu-memory-utilization")
    flag = named.get("kv-cache-dtype")
    return Plan(
        tensor_parallel=tensor_parallel,
        vllm=vllm,
        kv_dtype=flag if isinstance(flag, str) and flag != "auto" else kv,
        context_parallel=number("decode-context-parallel-size") or 1,
        pipeline_parallel=number("pipeline-parallel-size") or 1,
        utilization=float(share) if isinstance(share, (int, float)) and not isinstance(share, bool) else None,
        max_model_len=number("max-model-len"),
        max_num_seqs=number("max-num-seqs"),
        max_num_batched_tokens=number("max-num-batched-tokens"),
        kv_bytes=_bytes(named.get("kv-cache-memory-bytes")),
    )


def _bytes(value: FlagValue | None) -> int | None:
    """A size as vLLM's parser reads it: `128M` is binary, `128m` decimal (vllm/utils, human_readable_int)."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgGtT]?)", value.strip()) if isinstance(value, str) else None
    if match is None:
        return None
    power = "kmgt".find(match[2].lower()) + 1 if match[2] else 0
    return int(float(match[1]) * (1024 if match[2].isupper() else 1000) ** power)


def estimate(card: ModelCard, plan: Plan, gpu_memory: int, weights: int, replicated: int | None = None) -> Fit:
    """The fit on GPUs of `gpu_memory` bytes (as nvidia-smi shows it) of a checkpoint with `weights` bytes of tensors, of
    which `replicated` bytes stand on every rank; None has them worked out from the card."""
    share = plan.utilization if plan.utilization is not None else default_utilization(plan.vllm)
    whole = _replicated(card) if replicated is None else replicated
    mine = ((weights - whole) / plan.tensor_parallel + whole) / plan.pipeline_parallel
    reserve = _reserve(card, plan)
    budget = share * max(0.0, gpu_memory - DRIVER_SHARE)
    kv = budget - mine - reserve
    if plan.kv_bytes is not None:
        share, budget = 1.0, max(0.0, gpu_memory - DRIVER_SHARE)
        room = budget - mine - reserve
        kv = plan.kv_bytes if plan.kv_bytes <= room else room - plan.kv_bytes  # below zero: what is missing
    cost = _cost(card, plan, plan.kv_dtype, plan.context_parallel)
    wanted = plan.max_model_len or card.max_positions
    tokens = _tokens(kv, cost)
    longest = tokens  # one request may take the whole cache
    loads, why = _loads(kv, longest, wanted, mine, budget)
    requests = None
    if cost is not None and wanted and kv > 0:
        requests = kv / (cost.per_token * wanted + cost.per_request) if cost.per_token else None
    notes = []
    if any(group.kind == "state" for group in card.groups):
        notes.append("the state of linear-attention layers, a fixed amount per request, is not counted")
    return Fit(
        gpu=gpu_memory,
        utilization=share,
        budget=budget,
        weights=mine,
        reserve=reserve,
        kv=kv,
        dtype=kv_dtype(card, plan.kv_dtype),
        cost=cost,
        tokens=tokens,
        wanted=wanted,
        longest=longest,
        requests=requests,
        loads=loads,
        why=why,
        alternatives=_alternatives(card, plan, kv),
        notes=tuple(notes),
    )


def fit_table(fit: Fit) -> tuple[tuple[str, str], ...]:
    """The fit as rows of (name, value), for a table per GPU."""
    rows = [
        ("GPU memory", f"{gib(fit.gpu)}, {fit.utilization:.0%} of it for vLLM: {gib(fit.budget)}"),
        ("weights", gib(fit.weights)),
        ("activations, graphs, NCCL", f"{gib(fit.reserve)} (estimated)"),
        ("KV cache", f"{gib(fit.kv)} of {fit.dtype}" if fit.kv > 0 else "no room"),
    ]
    if fit.cost is not None:
        rows.append(("per token", f"{fit.cost.per_token:,.0f} bytes"))
    if fit.tokens is not None:
        rows.append(("tokens", f"{fit.tokens:,}"))
    if fit.wanted:
        together = f", {fit.requests:.2f} at once" if fit.requests is not None else ""
        rows.append(("longest request", f"{fit.longest or 0:,} of {fit.wanted:,} wanted{together}"))
    rows += [(f"with {other.label}", f"{other.tokens:,} tokens") for other in fit.alternatives]
    rows.append(("verdict", fit.why))
    return tuple(rows)


def gpu_table(fits: Sequence[tuple[str, Fit]]) -> str:
    """A line for each kind of GPU, named by its indices, and below what the smallest of them can and could serve."""
    rows = [("GPU", "memory", "for vLLM", "weights", "reserve", "KV cache", "tokens")]
    rows += [
        (name, gib(fit.gpu), gib(fit.budget), gib(fit.weights), gib(fit.reserve),
         gib(fit.kv) if fit.kv > 0 else "no room", "unknown" if fit.tokens is None else f"{fit.tokens:,}")
        for name, fit in fits
    ]  # fmt: skip
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [row[0].ljust(widths[0]) + "".join(f"  {cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True)) for row in rows]  # fmt: skip
    fit = min((fit for _, fit in fits), key=lambda each: each.gpu)
    cost = "unknown bytes" if fit.cost is None else f"{fit.cost.per_token:,.0f} bytes"
    lines.append(f"{fit.dtype} KV, {cost} per token and GPU; {fit.utilization:.0%} of the memory is for vLLM")
    if fit.wanted and fit.longest is not None:
        together = f", {fit.requests:.2f} of them at once" if fit.requests is not None else ""
        lines.append(f"longest request {min(fit.longest, fit.wanted):,} of {fit.wanted:,} tokens wanted{together}")
    lines += [f"with {other.label}: {other.tokens:,} tokens" for other in fit.alternatives]
    return "\n".join([*lines, *(f"note: {text}" for text in fit.notes), fit.why])


def _loads(
    kv: float, longest: int | None, wanted: int | None, weights: float, budget: float
) -> tuple[bool | None, str]:
    if kv <= 0:
        return (
            False,
            f"does not load: weights and reserves need {gib(-kv)} more than the {gib(budget)} that vLLM may use",
        )
    if longest is None:
        return None, "weights fit; what a token costs is unknown for this attention"
    if wanted and longest < wanted:
        proposal = max(1024, longest * 95 // 100 // 1024 * 1024)
        return False, f"does not start with {wanted:,} tokens of context; set max-model-len to {proposal:,}"
    return True, "fits"


def _tokens(kv: float, cost: KvCost | None) -> int | None:
    if cost is None or not cost.per_token:
        return None
    return max(0, int((kv - cost.per_request) / cost.per_token))


def _cost(card: ModelCard, plan: Plan, dtype: str, context_parallel: int) -> KvCost | None:
    cost = kv_cost(card, dtype, tensor_parallel=plan.tensor_parallel, context_parallel=context_parallel)
    if cost is None or plan.pipeline_parallel == 1:
        return cost
    return KvCost(cost.per_token / plan.pipeline_parallel, cost.per_request / plan.pipeline_parallel)


def _alternatives(card: ModelCard, plan: Plan, kv: float) -> tuple[Alternative, ...]:
    """What FP8 or decode context parallelism would change."""
    options = []
    if kv_dtype(card, plan.kv_dtype) != "fp8":
        options.append(("FP8 KV", "fp8", plan.context_parallel))
    if card.mla and plan.context_parallel == 1 and plan.tensor_parallel > 1:
        degree = plan.tensor_parallel
        options.append((f"decode-context-parallel-size {degree}", plan.kv_dtype, degree))
    found = []
    for label, dtype, degree in options:
        tokens = _tokens(kv, _cost(card, plan, dtype, degree))
        if tokens:
            found.append(Alternative(label, tokens))
    return tuple(found)


def _reserve(card: ModelCard, plan: Plan) -> float:
    batch = plan.max_num_batched_tokens or DEFAULT_BATCHED_TOKENS
    sequences = plan.max_num_seqs or DEFAULT_SEQUENCES
    activations = batch * (card.hidden or 8192) * 2 * ACTIVATION_WIDTHS
    logits = sequences * (card.vocabulary or 150_000) * 4
    graphs = GRAPHS if within(parse_version(plan.vllm), (">=0.20",)) else 0.0
    return OUTSIDE_TORCH + activations + logits + graphs


def _replicated(card: ModelCard) -> int:
    """Bytes of bfloat16 tensors that every rank keeps whole, from the config alone: MLA's down-projections, routers."""
    text = card.config.get("text_config")
    part = text if isinstance(text, dict) else card.config
    hidden, layers = card.hidden or 0, card.layers or 0
    experts = part.get("n_routed_experts") or part.get("num_experts") or part.get("num_local_experts") or 0
    down = 0
    if card.kv_lora_rank:
        down = int(part.get("q_lora_rank") or 0) + card.kv_lora_rank + (card.rope_dim or 0)
    vision = _vision(card)
    return layers * hidden * (down + (int(experts) if isinstance(experts, int) else 0)) * 2 + vision


def _vision(card: ModelCard) -> int:
    """Bytes of the vision tower, roughly: 12 squares of its width per layer, in bfloat16."""
    part = card.config.get("vision_config")
    if not isinstance(part, dict):
        return 0
    width = part.get("hidden_size") or part.get("vt_hidden_size")
    depth = part.get("num_hidden_layers") or part.get("depth") or part.get("vt_num_hidden_layers")
    return 12 * width * width * depth * 2 if isinstance(width, int) and isinstance(depth, int) else 0
