"""`/metrics`: the counters, gauges and histograms that operators read, in Prometheus text form."""

from __future__ import annotations

from .scheduler import Scheduler

_BUCKETS = {
    "time_to_first_token_seconds": (
        0.001,
        0.005,
        0.01,
        0.02,
        0.04,
        0.06,
        0.08,
        0.1,
        0.25,
        0.5,
        0.75,
        1.0,
        2.5,
        5.0,
        7.5,
        10.0,
    ),
    "inter_token_latency_seconds": (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5),
    "e2e_request_latency_seconds": (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
}
_HELP = {
    "time_to_first_token_seconds": "Histogram of time to first token in seconds.",
    "inter_token_latency_seconds": "Histogram of inter-token latency in seconds.",
    "e2e_request_latency_seconds": "Histogram of e2e request latency in seconds.",
}


class Metrics:
    """Histograms of a server, filled by its scheduler."""

    def __init__(self, model: str, scheduler: Scheduler) -> None:
        self._labels = f'engine="0",model_name="{model}"'
        self._scheduler = scheduler
        self._counts = {name: [0] * (len(bounds) + 1) for name, bounds in _BUCKETS.items()}
        self._sums = dict.fromkeys(_BUCKETS, 0.0)
        scheduler.stats.observe = self.observe

    def observe(self, name: str, value: float) -> None:
        bounds = _BUCKETS[name]
        place = next((number for number, bound in enumerate(bounds) if value <= bound), len(bounds))
        self._counts[name][place] += 1
        self._sums[name] += value

    def text(self) -> str:
        scheduler, stats = self._scheduler, self._scheduler.stats
        lines: list[str] = []
        for name, what, value in (
            ("num_requests_running", "Number of requests in model execution batches.", len(scheduler.running)),
            ("num_requests_waiting", "Number of requests waiting to be processed.", len(scheduler.waiting)),
            ("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", scheduler.kv_usage),
        ):
            lines += self._family(name, "gauge", what, float(value))
        lines += self._family("num_preemptions_total", "counter", "Cumulative number of preemptions.", 0.0)
        lines += self._family(
            "prompt_tokens_total", "counter", "Number of prefill tokens processed.", float(stats.prompt_tokens)
        )
        lines += self._family(
            "generation_tokens_total",
            "counter",
            "Number of generation tokens processed.",
            float(stats.generation_tokens),
        )
        lines += [
            "# HELP vllm:request_success_total Count of successfully processed requests.",
            "# TYPE vllm:request_success_total counter",
        ]
        lines += [
            f'vllm:request_success_total{{{self._labels},finished_reason="{reason}"}} {float(count)}'
            for reason, count in stats.finished.items()
        ]
        for name in _BUCKETS:
            lines += self._histogram(name)
        return "\n".join(lines) + "\n"

    def _family(self, name: str, kind: str, what: str, value: float) -> list[str]:
        return [f"# HELP vllm:{name} {what}", f"# TYPE vllm:{name} {kind}", f"vllm:{name}{{{self._labels}}} {value}"]

    def _histogram(self, name: str) -> list[str]:
        lines = [f"# HELP vllm:{name} {_HELP[name]}", f"# TYPE vllm:{name} histogram"]
        total = 0
        for bound, count in zip((*_BUCKETS[name], "+Inf"), self._counts[name], strict=True):
            total += count
            lines.append(f'vllm:{name}_bucket{{{self._labels},le="{bound}"}} {float(total)}')
        lines.append(f"vllm:{name}_count{{{self._labels}}} {float(total)}")
        lines.append(f"vllm:{name}_sum{{{self._labels}}} {self._sums[name]}")
        return lines
