"""The pretended engine loop: one step gives each running request a token, and prompts of new requests cost time.

One stream runs at some 60 tokens/s, 8 at 320 together, 32 at 790, 128 at 1,560 (the bands of DOMAIN E.5); prefill runs at
7,400 tokens/s. Times are the event loop's.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

PREFILL_PER_SECOND = 7400.0
SINGLE_STREAM = 60.0


def stream_rate(streams: int) -> float:
    """Tokens per second of each of `streams` running requests."""
    return SINGLE_STREAM / (1.0 + 0.12 * math.pow(max(0, streams - 1), 0.72))


@dataclass
class Request:
    """One sequence. `tokens` gives its pieces; `queue` carries (piece or None at the end) to whoever streams it."""

    prompt: int
    max_tokens: int
    tokens: Iterator[str]
    arrived: float = field(default_factory=time.monotonic)
    queue: asyncio.Queue[str | None] = field(default_factory=asyncio.Queue)
    prefilled: int = 0
    generated: int = 0
    first: float | None = None
    last: float | None = None
    finish: str = "length"
    aborted: bool = False


@dataclass
class Stats:
    """Counters since the start; `ttft`, `itl`, `e2e` in seconds, kept short by the metrics' own histograms."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    finished: dict[str, int] = field(default_factory=lambda: {"stop": 0, "length": 0, "abort": 0})
    observe: Callable[[str, float], None] = lambda name, value: None


class Scheduler:
    """Runs the requests. `changed` is called with the number of running requests when it changes."""

    def __init__(
        self, *, pace: float, max_seqs: int, batch: int, capacity: int, changed: Callable[[int], None]
    ) -> None:
        self.pace = pace
        self.max_seqs = max_seqs
        self.batch = batch
        self.capacity = max(1, capacity)
        self.running: list[Request] = []
        self.waiting: deque[Request] = deque()
        self.stats = Stats()
        self.frozen = False
        """No token comes any more: what clients of a hung server see."""
        self._changed = changed
        self._work = asyncio.Event()

    def add(self, request: Request) -> None:
        self.waiting.append(request)
        self._work.set()

    @property
    def kv_usage(self) -> float:
        """Part of the cache that running requests fill."""
        return min(1.0, sum(request.prefilled + request.generated for request in self.running) / self.capacity)

    async def run(self) -> None:
        """Step until cancelled."""
        told = 0
        while True:
            if not self.running and not self.waiting:
                self._work.clear()
                if told:
                    self._changed(0)
                    told = 0
                await self._work.wait()
            self._admit()
            if len(self.running) != told:
                told = len(self.running)
                self._changed(told)
            seconds = self._prefill() + 1.0 / stream_rate(len(self.running))
            await asyncio.sleep(seconds * self.pace)
            if not self.frozen:
                self._step()

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self.max_seqs:
            self.running.append(self.waiting.popleft())

    def _prefill(self) -> float:
        """Spend the step's token budget on prompts; the seconds that costs."""
        left = self.batch
        for request in self.running:
            part = min(left, request.prompt - request.prefilled)
            request.prefilled += part
            left -= part
        return (self.batch - left) / PREFILL_PER_SECOND

    def _step(self) -> None:
        now = time.monotonic()
        for request in list(self.running):
            if request.aborted:
                self._end(request, "abort", now)
                continue
            if request.prefilled < request.prompt:
                continue
            piece = next(request.tokens, None)
            if piece is None:
                self._end(request, "stop", now)
                continue
            if request.first is None:
                request.first = now
                self.stats.prompt_tokens += request.prompt
                self.stats.observe("time_to_first_token_seconds", now - request.arrived)
            elif request.last is not None:
                self.stats.observe("inter_token_latency_seconds", now - request.last)
            request.last = now
            request.generated += 1
            self.stats.generation_tokens += 1
            request.queue.put_nowait(piece)
            if request.generated >= request.max_tokens:
                self._end(request, "length", now)

    def _end(self, request: Request, finish: str, now: float) -> None:
        self.running.remove(request)
        request.finish = finish
        self.stats.finished[finish] = self.stats.finished.get(finish, 0) + 1
        self.stats.observe("e2e_request_latency_seconds", now - request.arrived)
        request.queue.put_nowait(None)

    def abort_all(self) -> None:
        """End every request at once."""
        now = time.monotonic()
        for request in list(self.running):
            self._end(request, "abort", now)
        while self.waiting:
            request = self.waiting.popleft()
            request.finish = "abort"
            request.queue.put_nowait(None)
