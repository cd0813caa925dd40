"""The memory fit of a run's profile on its node, before anything is loaded: facts in, fit out. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from console.checkpoint import hub, shards
from console.checkpoint.fit import Fit, estimate, plan_of
from console.checkpoint.patch import plan_patch
from console.checkpoint.probe import known
from console.checkpoint.quant import InvalidConfig

if TYPE_CHECKING:
    from console.deploy.step import Context


def forecast(ctx: Context) -> Fit | None:
    """The fit on the smallest GPU of the node; None while config, sizes or GPU memory are not known.

    Weights are those of the safetensors headers after a shard check, and the hub's file sizes before it.
    """
    facts, profile = ctx.facts, ctx.profile
    try:
        plan = plan_patch(facts, profile, known(ctx))
    except InvalidConfig:
        return None
    memories = [gpu.memory_total for gpu in facts.gpus.gpus if gpu.memory_total] if facts.gpus else []
    if plan.card is None or plan.outcome.decision is None or not memories:
        return None
    record = shards.remembered(facts, profile) or {}
    measured = record.get("weights", {})
    manifest = hub.remembered(facts, profile)
    weights = int(measured.get("total", 0)) or (manifest.weights if manifest else 0)
    if not weights:
        return None
    replicated = int(measured["replicated"]) if measured.get("total") else None
    flags = {**profile.serve.flags, **plan.outcome.flags}
    wanted = plan_of(flags, profile.serve.tensor_parallel_size, profile.vllm.version, plan.outcome.decision.dtype)
    return estimate(plan.card, wanted, min(memories), weights, replicated)
