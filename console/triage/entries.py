"""The entries of the catalogue as data: what a failure, a harmless line, a stage and a cue are.

Patterns are regular expressions searched in the line's text, prefixes stripped, one line at a time.

A failure's `kind` says how much it explains, strongest first:
`cause` explains by itself; `symptom` explains when nothing else does ("NCCL error: unhandled system error"); `sign` is only
the trace of a death ("Worker proc died unexpectedly"); `wrapper` follows from a failure and is never the cause; `stall` is
what a process says that waits, and counts only where the log moves no further; `stop` says that the end was wanted.

`where` says what such a line is: `exception`, the message of an exception, or a record at ERROR level; `line`, any line;
`kernel` a line of the kernel log, given apart or mixed into this one; `unit` the unit's result.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Final

STAGES: Final = (
    "argument_parsing",
    "api_server_start",
    "config_resolved",
    "engine_init",
    "device_init",
    "nccl_init",
    "model_loading",
    "model_download",
    "weights_loading",
    "weights_loaded",
    "torch_compile",
    "memory_profiling",
    "kv_cache_ready",
    "cuda_graph_capture",
    "cuda_graph_done",
    "engine_ready",
    "http_starting",
    "ready",
    "first_inference",
    "serving",
)
"""In the order in which a launch passes them."""
ORDER: Final = {name: place for place, name in enumerate(STAGES)}
READY: Final = ORDER["ready"]

KINDS: Final = ("cause", "symptom", "sign", "wrapper", "stall", "stop")
WHERE: Final = ("exception", "line", "kernel", "unit")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    id: str
    category: str
    title: str = ""
    kind: str = "cause"
    where: str = "exception"
    match: str
    unless: str = ""
    stages: frozenset[str] = frozenset()
    """Stages in which the entry holds; empty is everywhere."""
    why: str
    remedy: str
    source: str
    versions: str = ""
    """vLLM versions in which it is met, as `>=0.14,<0.18`; outside it the entry still explains and offers no fix."""
    fix: str = ""
    example: str = ""
    fatal: bool = False
    """The server is dead after it, even one that was ready."""
    outside: bool = False
    """Often the echo of something that only the kernel log tells; such facts, when given, come first."""
    inside: frozenset[str] = frozenset()
    """Functions of which one must stand in the traceback, or `speculative` for any file of speculative decoding; empty asks
    for none."""
    at: str = ""
    """The stage that such a failure belongs to, when the log has not come so far."""
    repeat: int = 1
    """How often a stall must be said before it means anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    id: str
    match: str
    unless: str = ""
    stages: frozenset[str] = frozenset()
    why: str
    source: str
    versions: str = ""
    example: str = ""
    show: bool = False
    """Harmless, and still worth a look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cue:
    id: str = ""
    match: str
    versions: str = ""
    source: str = ""
    example: str = ""
    engine: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    id: str
    title: str
    stall: float
    """Seconds without a line after which a living process counts as hung here."""
    cues: tuple[Cue, ...] = ()
    frames: tuple[str, ...] = ()
    """Names of functions in a traceback that prove that the failure happened in this stage."""
    hang: str = ""
    """Category of a launch whose log just ends in this stage."""
    advice: str = ""
    """What to look at when it does."""


@functools.lru_cache(maxsize=4096)
def compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


_NUMBERS = re.compile(r"\d+")


def in_window(version: str | None, window: str) -> bool | None:
    """Whether `version` lies in `window`; None when either is unknown. Development and post builds count as their release."""
    if not version or not window:
        return None
    have = _key(version)
    if not have:
        return None
    for part in window.split(","):
        sign = part.rstrip("0123456789.")
        want = _key(part[len(sign) :])
        width = max(len(have), len(want))
        left, right = have + (0,) * (width - len(have)), want + (0,) * (width - len(want))
        if not {">=": left >= right, "<=": left <= right, ">": left > right, "<": left < right}.get(
            sign, left == right
        ):
            return False
    return True


def _key(version: str) -> tuple[int, ...]:
    """The release part: `0.16.0rc2.dev313+g1` is (0, 16, 0)."""
    found = re.match(r"v?(\d+(?:\.\d+)*)", version)
    return tuple(int(n) for n in _NUMBERS.findall(found[1])) if found else ()
