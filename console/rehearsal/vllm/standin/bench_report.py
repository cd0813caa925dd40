"""What `vllm bench serve` reports: the result JSON with the keys of DOMAIN F.1, and the summary table. Pure."""

from __future__ import annotations

import argparse
import statistics
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .bench import Measured

_TITLES = {
    "ttft": "Time to First Token",
    "tpot": "Time per Output Token (excl. 1st token)",
    "itl": "Inter-token Latency",
    "e2el": "End-to-end Latency",
}


def percentile(values: list[float], percent: float) -> float:
    """Linear between the neighbours, as numpy's default."""
    if not values:
        return 0.0
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def result_json(
    args: argparse.Namespace, results: list[Measured], duration: float, peak: int, release: tuple[int, int, int]
) -> dict[str, Any]:
    """The result file's content; times in milliseconds, rates per second."""
    good = [result for result in results if result.ok]
    tokens_in = sum(result.prompt_tokens for result in good)
    tokens_out = sum(result.tokens for result in good)
    data: dict[str, Any] = {
        "date": time.strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": args.endpoint_type or args.backend,
        "backend": args.backend,
        "label": args.label,
        "model_id": args.model,
        "tokenizer_id": args.tokenizer or args.model,
        "num_prompts": args.num_prompts,
        **dict(pair.split("=", 1) for pair in args.metadata),
        "request_rate": "inf" if args.request_rate == float("inf") else args.request_rate,
        "burstiness": args.burstiness,
        "max_concurrency": args.max_concurrency,
        "duration": duration,
        "completed": len(good),
        "failed": len(results) - len(good),
        "total_input_tokens": tokens_in,
        "total_output_tokens": tokens_out,
        "request_throughput": len(good) / duration,
        "request_goodput": None,
        "output_throughput": tokens_out / duration,
        "total_token_throughput": (tokens_in + tokens_out) / duration,
        "max_output_tokens_per_s": float(_peak_rate(good)),
        "max_concurrent_requests": peak,
    }
    if release >= (0, 18, 0):
        data["rtfx"] = 0.0
    series = _series(good)
    percents = [float(part) for part in str(args.metric_percentiles).split(",")]
    for name in (part.strip() for part in args.percentile_metrics.split(",")):
        values = series.get(name)
        if values is None:
            continue
        data[f"mean_{name}_ms"] = statistics.fmean(values) if values else 0.0
        data[f"median_{name}_ms"] = percentile(values, 50)
        data[f"std_{name}_ms"] = statistics.pstdev(values) if values else 0.0
        for percent in percents:
            data[f"p{percent:g}_{name}_ms"] = percentile(values, percent)
    if args.save_detailed:
        data |= {
            "input_lens": [result.prompt_tokens for result in results],
            "output_lens": [result.tokens for result in results],
            "ttfts": [result.ttft for result in results],
            "itls": [result.itls for result in results],
            "generated_texts": [result.text for result in results],
            "errors": [result.error for result in results],
        }
        if release >= (0, 18, 0):
            data |= {
                "latencies": [result.latency for result in results],
                "start_times": [result.started for result in results],
            }
    return data


def _series(good: list[Measured]) -> dict[str, list[float]]:
    return {
        "ttft": [result.ttft * 1000 for result in good],
        "tpot": [(result.latency - result.ttft) / (result.tokens - 1) * 1000 for result in good if result.tokens > 1],
        "itl": [itl * 1000 for result in good for itl in result.itls],
        "e2el": [result.latency * 1000 for result in good],
    }


def _peak_rate(good: list[Measured]) -> int:
    """Most tokens in any one second."""
    seconds: dict[int, int] = {}
    for result in good:
        at = result.started + result.ttft
        seconds[int(at)] = seconds.get(int(at), 0) + 1
        for gap in result.itls:
            at += gap
            seconds[int(at)] = seconds.get(int(at), 0) + 1
    return max(seconds.values(), default=0)


def result_name(args: argparse.Namespace) -> str:
    """The default file name."""
    rate = "inf" if args.request_rate == float("inf") else str(args.request_rate)
    concurrency = f"-concurrency{args.max_concurrency}" if args.max_concurrency is not None else ""
    base = str(args.model or "").rstrip("/").rpartition("/")[2]
    return f"{args.label or args.backend}-{rate}qps{concurrency}-{base}-{time.strftime('%Y%m%d-%H%M%S')}.json"


def table(args: argparse.Namespace, data: dict[str, Any]) -> str:
    """The summary that ends the output."""
    lines = [f"{' Serving Benchmark Result ':=^50}"]

    def row(text: str, value: object) -> None:
        shown = f"{value:<10.2f}" if isinstance(value, float) else f"{value!s:<10}"
        lines.append(f"{text:<40} {shown}")

    row("Successful requests:", data["completed"])
    row("Failed requests:", data["failed"])
    if args.max_concurrency is not None:
        row("Maximum request concurrency:", args.max_concurrency)
    row("Benchmark duration (s):", data["duration"])
    row("Total input tokens:", data["total_input_tokens"])
    row("Total generated tokens:", data["total_output_tokens"])
    row("Request throughput (req/s):", data["request_throughput"])
    row("Output token throughput (tok/s):", data["output_throughput"])
    row("Peak output token throughput (tok/s):", data["max_output_tokens_per_s"])
    row("Peak concurrent requests:", float(data["max_concurrent_requests"]))
    row("Total token throughput (tok/s):", data["total_token_throughput"])
    for name in (part.strip() for part in args.percentile_metrics.split(",")):
        if f"mean_{name}_ms" not in data:
            continue
        lines.append(f"{_TITLES[name]:-^50}")
        row(f"Mean {name.upper()} (ms):", data[f"mean_{name}_ms"])
        row(f"Median {name.upper()} (ms):", data[f"median_{name}_ms"])
        for percent in (float(part) for part in str(args.metric_percentiles).split(",")):
            row(f"P{percent:g} {name.upper()} (ms):", data[f"p{percent:g}_{name}_ms"])
    lines.append("=" * 50)
    return "\n".join(lines)
