"""Is it fast enough: the profile's gates and the last good release against what was measured, in words.

Pure. A value that was not measured cannot keep a bound, so it breaks it; a bound that the profile does not set, and a
baseline that does not exist, are not checked and said to be so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from console.events import Measured
from console.profile.model import Gate

SLOW_SINGLE = (
    "single-stream decode is far below what this class of model does: look for P2P switched off (NCCL_P2P_LEVEL, IOMMU, "
    "ACS), eager mode (--enforce-eager), or another attention or MoE kernel than usual in the start-up log"
)  # DOMAIN E.5
SLOW_MANY = "look at --max-num-seqs, --max-num-batched-tokens and the KV cache size in the start-up log"
SLOW_FIRST = "look at --max-num-batched-tokens and at what else uses the GPUs; a first request may compile kernels"
SLOW_DECODE = "look at GPU clocks, power and temperature, and at the log for eager mode or PIECEWISE graphs"
FAILED = "look at the service's log: requests that fail are a fault, not a speed"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One bound: kept or not, in words, and what to look at when it is not."""

    kept: bool
    text: str
    remedy: str = ""


def verdicts(
    gates: Sequence[Gate], measured: Sequence[Measured], baseline: Sequence[Measured] = ()
) -> tuple[Verdict, ...]:
    """Every bound that applies, in the order of the load points. Failed requests are always red."""
    found: list[Verdict] = []
    for point in measured:
        found.append(_all_succeeded(point))
        for gate in gates:
            if gate.concurrency == point.concurrency:
                found.extend(_bounds(gate, point))
                found.extend(_against(gate, point, baseline))
    measured_at = {point.concurrency for point in measured}
    found.extend(
        Verdict(
            False,
            f"concurrency {gate.concurrency}: has a gate and was not measured",
            "give throughput.points a load point of this concurrency",
        )
        for gate in gates
        if gate.concurrency not in measured_at
    )
    return tuple(found)


def summary(found: Sequence[Verdict], measured: Sequence[Measured]) -> str:
    """One line of evidence: what was measured, and how many bounds were kept."""
    speeds = ", ".join(f"{_speed(point.output_tokens_per_s)} at {point.concurrency}" for point in measured)
    bounds = f"{sum(1 for verdict in found if verdict.kept)}/{len(found)} bounds kept"
    return f"{speeds}; {bounds}" if speeds else bounds


def _all_succeeded(point: Measured) -> Verdict:
    asked = point.completed + point.failed
    where = f"concurrency {point.concurrency}"
    if point.failed or not point.completed:
        return Verdict(False, f"{where}: {point.failed} of {asked} requests failed", FAILED)
    return Verdict(True, f"{where}: {point.completed} of {asked} requests completed")


def _bounds(gate: Gate, point: Measured) -> list[Verdict]:
    where = f"concurrency {point.concurrency}"
    found = []
    if gate.min_output_tokens_per_s is not None:
        value = point.output_tokens_per_s
        remedy = SLOW_SINGLE if point.concurrency == 1 else SLOW_MANY
        kept = value is not None and value >= gate.min_output_tokens_per_s
        found.append(
            _verdict(kept, f"{where}: output {_speed(value)}, at least {gate.min_output_tokens_per_s:g}", remedy)
        )
    for name, limit, spread, remedy in (
        ("TTFT", gate.max_ttft_p99_ms, point.ttft_ms, SLOW_FIRST),
        ("TPOT", gate.max_tpot_p99_ms, point.tpot_ms, SLOW_DECODE),
        ("ITL", gate.max_itl_p99_ms, point.itl_ms, SLOW_DECODE),
    ):
        if limit is not None:
            value = spread.get("p99")
            text = f"{where}: {name} p99 {_time(value)}, at most {limit:g} ms"
            found.append(_verdict(value is not None and value <= limit, text, remedy))
    return found


def _against(gate: Gate, point: Measured, baseline: Sequence[Measured]) -> list[Verdict]:
    """The load point against the same one of the last good release; nothing when there is none, or no tolerance."""
    if gate.tolerance_percent is None:
        return []
    shape = (point.concurrency, point.input_tokens, point.output_tokens)
    before = next((b for b in baseline if (b.concurrency, b.input_tokens, b.output_tokens) == shape), None)
    if before is None or not before.output_tokens_per_s:
        return []
    value = point.output_tokens_per_s
    where = f"concurrency {point.concurrency}"
    if value is None:
        return [Verdict(False, f"{where}: output speed was not reported, the last good release did "
                               f"{_speed(before.output_tokens_per_s)}", SLOW_MANY)]  # fmt: skip
    change = 100 * (value / before.output_tokens_per_s - 1)
    text = (
        f"{where}: output {_speed(value)}, {change:+.1f} % against {_speed(before.output_tokens_per_s)} of the last good "
        f"release, at most -{gate.tolerance_percent:g} %"
    )
    remedy = SLOW_SINGLE if point.concurrency == 1 else SLOW_MANY
    return [_verdict(change >= -gate.tolerance_percent, text, remedy)]


def _verdict(kept: bool, text: str, remedy: str) -> Verdict:
    return Verdict(kept, text, "" if kept else remedy)


def _speed(value: float | None) -> str:
    return "unknown tok/s" if value is None else f"{value:.1f} tok/s"


def _time(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1f} ms"
