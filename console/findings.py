"""A finding of preflight: what was looked at, whether it lets the redeploy go on, and what would be right."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

from console.events import Found

Level = Literal["allow", "warn", "refuse"]


@dataclass(frozen=True, slots=True)
class Finding:
    """`rule` is a stable id; `text` one sentence with the measured values; `remedy` may be empty for allow."""

    level: Level
    rule: str
    text: str
    remedy: str = ""
    table: str = ""
    """Figures behind it, as lines of aligned text."""

    def event(self, step: str) -> Found:
        """The finding as `step` tells it."""
        return Found(
            time=time.time(), step=step, level=self.level, rule=self.rule, text=self.text, remedy=self.remedy,
            table=self.table,
        )  # fmt: skip


def allow(rule: str, text: str, *, table: str = "") -> Finding:
    return Finding("allow", rule, text, table=table)


def warn(rule: str, text: str, remedy: str = "", *, table: str = "") -> Finding:
    return Finding("warn", rule, text, remedy, table)


def refuse(rule: str, text: str, remedy: str = "", *, table: str = "") -> Finding:
    return Finding("refuse", rule, text, remedy, table)
