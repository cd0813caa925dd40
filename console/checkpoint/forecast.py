"""The memory fit of a run's profile on its node, before anything is loaded; and after a launch, how good it was. Pure.

Facts in, fit out. Once the server is up, its own log says what the model took and how many tokens of cache came of the
rest; the difference is told as an event, so that it is stored with the run.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from console.checkpoint import hub, shards
from console.checkpoint.fit import GIB, Fit, estimate, gpu_table, plan_of
from console.checkpoint.patch import plan_for
from console.checkpoint.quant import InvalidConfig
from console.events import Compared
from console.findings import Finding, allow, refuse, warn
from console.text import gib

if TYPE_CHECKING:
    from console.deploy.step import Context

# as vLLM writes them: 0.8 to 0.33; every rank says the first two, the engine the third
_WEIGHTS = re.compile(r"\b(?:Model loading|Loading model weights) took ([\d.]+) ?Gi?B\b")
_KV_MEMORY = re.compile(r"\bAvailable KV cache memory: (-?[\d.]+) ?Gi?B\b")
_KV_TOKENS = re.compile(r"\b[CG]PU KV cache size: ([\d,]+) tokens\b")


@dataclass(frozen=True, slots=True)
class Forecast:
    """The fit on GPUs of one kind. `gpus`: their indices."""

    gpus: tuple[int, ...]
    name: str
    fit: Fit

    @property
    def label(self) -> str:
        """`0-7  NVIDIA …`; single indices where they are not in a row."""
        first, last = self.gpus[0], self.gpus[-1]
        row = self.gpus == tuple(range(first, last + 1))
        which = str(first) if first == last else f"{first}-{last}" if row else ",".join(map(str, self.gpus))
        return f"{which}  {self.name}".rstrip()


@dataclass(frozen=True, slots=True)
class Logged:
    """What a server's log says of its memory: bytes per GPU (the fullest rank's), tokens of cache. None is not said."""

    weights: float | None = None
    kv_memory: float | None = None
    kv_tokens: int | None = None


def forecasts(ctx: Context) -> tuple[Forecast, ...]:
    """The fit on each kind of GPU of the node; empty while config, sizes or GPU memory are not known.

    Weights are those of the safetensors headers after a shard check, and the hub's file sizes before it.
    """
    facts, profile = ctx.facts, ctx.profile
    try:
        plan = plan_for(ctx)
    except InvalidConfig:
        return ()
    weights, replicated = _weights(ctx)
    if plan.card is None or plan.outcome.decision is None or not weights or facts.gpus is None:
        return ()
    kinds: dict[tuple[int, str], list[int]] = {}
    for gpu in facts.gpus.gpus:
        if gpu.memory_total:
            kinds.setdefault((gpu.memory_total, gpu.name or ""), []).append(gpu.index)
    flags = {**profile.serve.flags, **plan.outcome.flags}
    wanted = plan_of(flags, profile.serve.tensor_parallel_size, profile.vllm.version, plan.outcome.decision.dtype)
    return tuple(
        Forecast(tuple(indices), name, estimate(plan.card, wanted, memory, weights, replicated))
        for (memory, name), indices in kinds.items()
    )


def forecast(ctx: Context) -> Fit | None:
    """The fit on the smallest GPU of the node, which is the one that counts; None while it cannot be known."""
    return min((each.fit for each in forecasts(ctx)), key=lambda fit: fit.gpu, default=None)


def finding(found: Sequence[Forecast]) -> Finding:
    """Whether the model and one request of the wanted length fit the smallest GPU, with a table of all."""
    if not found:
        return allow("fit", "the memory fit is computed when config and file sizes are known")
    fit = min((each.fit for each in found), key=lambda each: each.gpu)
    return fit_finding(fit, gpu_table([(each.label, each.fit) for each in found]))


def fit_finding(fit: Fit, table: str = "") -> Finding:
    """The verdict in a sentence, with the other ways when it does not fit."""
    if fit.loads is None:
        return warn("fit", fit.why, table=table)
    if not fit.loads:
        others = ", ".join(f"{other.label} ({other.tokens:,} tokens)" for other in fit.alternatives)
        remedy = f"other ways: {others}" if others else "more or larger GPUs are needed"
        return refuse("fit", f"the model {fit.why}", remedy, table=table)
    tokens = f", {fit.tokens:,} tokens of KV cache" if fit.tokens is not None else ""
    return allow("fit", f"{gib(fit.weights)} of weights per GPU{tokens}", table=table)


def read_log(lines: Iterable[str]) -> Logged:
    """The figures in a start-up log. Ranks differ a little: the fullest decides, as in vLLM itself."""
    weights: list[float] = []
    memory: list[float] = []
    tokens: list[int] = []
    for line in lines:
        if match := _WEIGHTS.search(line):
            weights.append(float(match[1]) * GIB)
        if match := _KV_MEMORY.search(line):
            memory.append(float(match[1]) * GIB)
        if match := _KV_TOKENS.search(line):
            tokens.append(int(match[1].replace(",", "")))
    return Logged(max(weights, default=None), min(memory, default=None), min(tokens, default=None))


def compare(ctx: Context, lines: Iterable[str]) -> Iterator[Compared]:
    """What the server's log says against the forecast, one event per figure that the log holds."""
    logged, fit = read_log(lines), forecast(ctx)
    figures = (
        ("weights", "bytes", fit.weights if fit else None, logged.weights),
        ("kv-memory", "bytes", fit.kv if fit else None, logged.kv_memory),
        ("kv-cache", "tokens", fit.tokens if fit else None, logged.kv_tokens),
    )
    for what, unit, expected, measured in figures:
        if measured is not None:
            error = (expected - measured) / measured if expected is not None and measured else None
            yield Compared(time=time.time(), what=what, unit=unit, expected=expected, measured=measured, error=error)


def _weights(ctx: Context) -> tuple[int, int | None]:
    """Bytes of tensors, and those that every rank keeps whole; (0, None) while unknown."""
    record = shards.remembered(ctx.facts, ctx.profile) or {}
    measured = record.get("weights", {})
    if measured.get("total"):
        return int(measured["total"]), int(measured["replicated"])
    manifest = hub.known(ctx)
    return (manifest.weights if manifest else 0), None
