"""What was last seen of a node, kept in this account's store: what the list of nodes says of those it is not connected to.

Pure, made of a glance. None and `?` are unknown, and stay so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from console.text import clean

if TYPE_CHECKING:
    from console.live import Glance


@dataclass(frozen=True, slots=True)
class Seen:
    """One node at `time` (UNIX seconds). Memory in bytes, over all its GPUs."""

    time: float
    serves: str = "?"
    gpus: int | None = None
    gpu_name: str | None = None
    """None when they differ, too."""
    used: int | None = None
    total: int | None = None


def seen_of(glance: Glance, now: float) -> Seen:
    """What is to be remembered of the node in hand."""
    sample = glance.gpus.sample
    if sample is None:
        return Seen(now, serving(glance))
    names = {gpu.name for gpu in sample.gpus}
    used = [gpu.memory_used for gpu in sample.gpus]
    total = [gpu.memory_total for gpu in sample.gpus]
    return Seen(
        time=now,
        serves=serving(glance),
        gpus=len(sample.gpus),
        gpu_name=next(iter(names)) if len(names) == 1 else None,
        used=None if None in used else sum(item or 0 for item in used),
        total=None if None in total else sum(item or 0 for item in total),
    )


def serving(glance: Glance) -> str:
    """The model of the unit that is active on the connected node; `?` where the facts do not tell."""
    facts, profile = glance.facts, glance.profile
    if facts is None or profile is None:
        return "?"
    for name in (profile.service.unit, *profile.replaces):
        unit = facts.units.get(name)
        if unit is not None and unit.active in ("active", "activating", "reloading"):
            model = profile.model.served_name if name == profile.service.unit else name.removesuffix(".service")
            return clean(model) if unit.active == "active" else f"{clean(model)} ({unit.active})"
    return "nothing serves" if facts.units else "?"
