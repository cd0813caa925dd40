"""`relaunch --help` against `python -c pass` with the same interpreter; aim: within 100 ms of it."""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

from tests.benchmarks.figures import spent, tell

RELAUNCH = str(Path(sys.executable).parent / "relaunch")


def main() -> None:
    help_, bare = [RELAUNCH, "--help"], [sys.executable, "-c", "pass"]
    runs = [(spent(help_), spent(bare)) for _ in range(16)][1:]
    for what, at in (("wall", 0), ("CPU", 1)):
        ours, theirs = [one[at] for one, _ in runs], [two[at] for _, two in runs]
        tell(f"relaunch --help against python -c pass, {what}", ours, theirs)
        extra = statistics.median(a - b for a, b in zip(ours, theirs, strict=True)) * 1000
        print(f"difference: {extra:.0f} ms; aim 100 ms or less")


if __name__ == "__main__":
    main()
