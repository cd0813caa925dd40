"""A finding of preflight: what was looked at, whether it lets the redeploy go on, and what would be right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["allow", "warn", "refuse"]


@dataclass(frozen=True, slots=True)
class Finding:
    """`rule` is a stable id; `text` one sentence with the measured values; `remedy` may be empty for allow."""

    level: Level
    rule: str
    text: str
    remedy: str = ""


def allow(rule: str, text: str) -> Finding:
    return Finding("allow", rule, text)


def warn(rule: str, text: str, remedy: str = "") -> Finding:
    return Finding("warn", rule, text, remedy)


def refuse(rule: str, text: str, remedy: str = "") -> Finding:
    return Finding("refuse", rule, text, remedy)
