"""The result file of `vllm bench serve`, 0.16 to 0.33, as one `Measured`; read leniently, nothing made up.

Pure. A field that the tool did not write, or wrote as something else than a finite number, is None or absent.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from console.errors import RelaunchError
from console.events import Measured
from console.profile.model import LoadPoint


def parse_result(text: str | bytes, point: LoadPoint, *, time: float) -> Measured:
    """The measurement in a result file. Raises RelaunchError when it is no result at all."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise RelaunchError("the load test wrote no JSON result", "look at the log of the load test") from error
    if isinstance(data, list) and data:  # --append-result writes a list; the last one is ours
        data = data[-1]
    if not isinstance(data, dict) or not ({"completed", "output_throughput", "duration"} & data.keys()):
        raise RelaunchError("the load test wrote something else than a result", "look at the log of the load test")
    completed = _whole(data.get("completed")) or 0
    failed = _whole(data.get("failed"))
    if failed is None:  # not written: what was asked for and did not complete did not succeed
        failed = max(0, (_whole(data.get("num_prompts")) or point.prompts) - completed)
    return Measured(
        time=time,
        concurrency=point.concurrency,
        input_tokens=point.input_tokens,
        output_tokens=point.output_tokens,
        completed=completed,
        failed=failed,
        output_tokens_per_s=_number(data.get("output_throughput")),
        total_tokens_per_s=_number(data.get("total_token_throughput")),
        ttft_ms=_spread(data, "ttft"),
        tpot_ms=_spread(data, "tpot"),
        itl_ms=_spread(data, "itl"),
    )


def _spread(data: dict[str, Any], metric: str) -> dict[str, float]:
    """`{"mean": …, "p50": …, "p99": …}` in milliseconds, of what is there."""
    shape = re.compile(rf"(mean|median|std|p\d+(?:\.\d+)?)_{metric}_ms")
    found = {
        match[1]: number
        for key, value in data.items()
        if (match := shape.fullmatch(key)) and (number := _number(value)) is not None
    }
    if "p50" not in found and "median" in found:
        found["p50"] = found["median"]
    return found


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _whole(value: object) -> int | None:
    number = _number(value)
    return None if number is None else int(number)
