"""`relaunch --help` against `python -c pass` with the same interpreter; aim: within 100 ms of it."""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

from tests.benchmarks.figures import pairs, tell, wall

RELAUNCH = str(Path(sys.executable).parent / "relaunch")


def main() -> None:
    ours, theirs = pairs(lambda: wall([RELAUNCH, "--help"]), lambda: wall([sys.executable, "-c", "pass"]), runs=15)
    tell("relaunch --help against python -c pass", ours, theirs)
    extra = statistics.median(a - b for a, b in zip(ours, theirs, strict=True)) * 1000
    print(f"difference: {extra:.0f} ms; aim 100 ms or less")


if __name__ == "__main__":
    main()
