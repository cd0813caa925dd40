"""The console is not here yet. Opening it says so, and says what does the same job."""

from __future__ import annotations

import argparse
import sys


def run(options: argparse.Namespace) -> int:
    """The front end that `relaunch` opens without a verb. Returns an exit code."""
    rehearse = " --rehearse" if getattr(options, "rehearse", False) else ""
    print(  # noqa: T201 - the one sentence of this stub
        "relaunch: the screens are not here yet; the same engine runs headless:\n"
        f"  relaunch{rehearse} plan                  what would change\n"
        f"  relaunch{rehearse} --script redeploy     do it",
        file=sys.stderr,
    )
    return 2
