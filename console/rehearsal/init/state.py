"""What is remembered of a service: its main process, and when it moved between states. Pure but for clocks."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from console.rehearsal.init.group import Ended

_DEAD = ("inactive", "failed")


@dataclass(slots=True)
class Stamp:
    """When something happened: microseconds of wall clock and of the monotonic clock; 0 for never."""

    real: int = 0
    monotonic: int = 0

    def now(self) -> None:
        self.real, self.monotonic = time.time_ns() // 1000, time.monotonic_ns() // 1000


@dataclass(slots=True)
class Main:
    """The main process, living or dead; pid 0 before there was one."""

    pid: int = 0
    start: Stamp = field(default_factory=Stamp)
    exit: Stamp = field(default_factory=Stamp)
    ended: Ended | None = None

    @property
    def lives(self) -> bool:
        return self.pid > 0 and self.ended is None


@dataclass(slots=True)
class Moves:
    """The five time stamps that `systemctl show` gives of a unit's states."""

    stamps: dict[str, Stamp] = field(
        default_factory=lambda: {
            name: Stamp() for name in ("InactiveExit", "ActiveEnter", "ActiveExit", "InactiveEnter", "StateChange")
        }
    )

    def moved(self, was: str, now: str) -> None:
        """The unit went from ActiveState `was` to `now`, or between two sub-states of one."""
        self.stamps["StateChange"].now()
        if was in _DEAD and now not in _DEAD:
            self.stamps["InactiveExit"].now()
        if was not in _DEAD and now in _DEAD:
            self.stamps["InactiveEnter"].now()
        if was != "active" and now == "active":
            self.stamps["ActiveEnter"].now()
        if was == "active" and now != "active":
            self.stamps["ActiveExit"].now()
