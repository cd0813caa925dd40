"""How a benchmark times and tells: medians of alternating runs, a ratio per pair, and the aim beside it."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence


def wall(argv: Sequence[str], **how: object) -> float:
    """Seconds that a whole process took; raises when it fails."""
    began = time.perf_counter()
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **how)  # type: ignore[call-overload]
    return time.perf_counter() - began


def spent(argv: Sequence[str], **how: object) -> tuple[float, float]:
    """Wall and processor seconds of a whole process and of what it waited for; raises when it fails."""
    began = time.perf_counter()
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **how)  # type: ignore[call-overload]
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, argv)
    return seconds, usage.ru_utime + usage.ru_stime


def in_turn(what: str, ours: Sequence[str], theirs: Sequence[str], runs: int, *, aim: str = "", **how: object) -> None:
    """Print wall and processor time of two whole processes, run in turn A B A B after one of each."""
    spent(ours, **how), spent(theirs, **how)
    one, two = zip(*((spent(ours, **how), spent(theirs, **how)) for _ in range(runs)), strict=True)
    tell(f"{what}, wall", [a for a, _ in one], [b for b, _ in two], aim=aim)
    tell(f"{what}, CPU here", [a for _, a in one], [b for _, b in two])


def pairs(ours: Callable[[], float], theirs: Callable[[], float], runs: int) -> tuple[list[float], list[float]]:
    """Seconds of both, measured in turn, so that a drift of the machine meets both alike."""
    ours(), theirs()
    one, two = [], []
    for _ in range(runs):
        one.append(ours())
        two.append(theirs())
    return one, two


def tell(what: str, ours: Sequence[float], theirs: Sequence[float], *, unit: str = "s", aim: str = "") -> float:
    """Print both medians and the median ratio ours/theirs, which is returned."""
    ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
    a, b = statistics.median(ours), statistics.median(theirs)
    print(
        f"{what}: {a:.4g} {unit} against {b:.4g} {unit}, ratio {ratio:.3g}{'; aim ' + aim if aim else ''}", flush=True
    )
    return ratio


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
