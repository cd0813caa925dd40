"""How far a load test is, by the server's own counters: journald keeps the tool's progress bar back until 48 kB of it have come.

Signs of life only. The figures of a load test are those of its result file.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

from console.node.http import Http, NoReply

EVERY = 5.0
"""Seconds between two looks at /metrics; a counter tells nobody when it moves."""
LIMIT = 5.0
_FINISHED = re.compile(r"^vllm:request_success(?:_total)?\{[^}]*\} ([0-9.e+]+)$", re.MULTILINE)


def finished(metrics: str) -> int | None:
    """Requests that the server has answered in its life; None where its text has no such counter. Pure."""
    counts = [float(value) for value in _FINISHED.findall(metrics)]
    return int(sum(counts)) if counts else None


async def watch(http: Http, before: int, tell: Callable[[int], None]) -> None:
    """Tell the requests finished since the first look, less `before` that the tool sends ahead of those it counts, at each
    look; never returns. A server that does not answer is none of this function's matter."""
    first: int | None = None
    while True:
        try:
            reply = await http.request("GET", "/metrics", limit=LIMIT)
            now = finished(reply.text) if reply.status == 200 else None
        except NoReply:
            now = None
        if now is not None:
            first = now if first is None else first
            tell(max(0, now - first - before))
        await asyncio.sleep(EVERY)
