"""How fast the rehearsal runs: one factor for every pause, so that tests can hurry and a person can watch.

`ROOT/pace.json` or the variable RELAUNCH_PRACTICE_PACE (JSON, wins): {"load": 1.0, "tokens": 1.0, "install": 1.0, "hub": 1.0}. A
factor multiplies the pauses of its kind; 0 leaves them out. A whole load takes about four seconds at 1.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

VARIABLE = "RELAUNCH_PRACTICE_PACE"


class Pace:
    """The factors as they were when it was made."""

    def __init__(self, root: Path) -> None:
        given: dict[str, float] = {}
        for text in (_read(root / "pace.json"), os.environ.get(VARIABLE, "")):
            try:
                given.update(json.loads(text or "{}"))
            except (ValueError, TypeError):
                continue
        self.load = float(given.get("load", 1.0))
        self.tokens = float(given.get("tokens", 1.0))
        self.install = float(given.get("install", 1.0))
        self.hub = float(given.get("hub", 1.0))

    def pause(self, seconds: float) -> None:
        """Let a step of the load take its time."""
        if self.load > 0:
            time.sleep(seconds * self.load)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
