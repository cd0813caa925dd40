"""What a screen reads: the `Source` protocol, and a source that stands still.

`console.live.Live` is the source of a real node; `FixedSource` holds one glance, for replays and tests. A screen gets its
source as constructor argument, calls `glance()` on the app's timer, and awaits nothing of it but in an action.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from console.deploy.store import Store
from console.live import Glance
from console.logs.spool import Spool

if TYPE_CHECKING:
    from console.deploy.lock import Owner
    from console.deploy.script import Script
    from console.engine import RunOptions


class Source(Protocol):
    """A node as a screen sees it."""

    spool: Spool
    store: Store

    def glance(self) -> Glance:
        """What is known now. Never blocks."""

    def start(self, script: Script, options: RunOptions) -> None:
        """Begin a run. Raises RelaunchError when that is not possible now."""

    async def interrupt(self) -> None:
        """Stop walking; what runs on the node goes on."""

    async def look(self) -> None:
        """Read the node's facts again."""

    async def unlock(self, owner: Owner) -> bool:
        """Remove the lock of `owner`; False when it had changed hands. Raises RelaunchError."""


@dataclass(frozen=True, slots=True)
class Moment:
    """Now: `wall` in UNIX seconds, `mono` on the monotonic clock that `Glance.…seen` is told in."""

    wall: float
    mono: float

    @classmethod
    def now(cls) -> Moment:
        return cls(time.time(), time.monotonic())

    def age(self, seen: float | None) -> float | None:
        """Seconds since `seen` (monotonic); None when it was never seen."""
        return None if seen is None else max(0.0, self.mono - seen)


STALE_SECONDS = 5.0
"""From this age on, a pane says how old it is."""


class FixedSource:
    """One glance that stays, with a spool and a store. Remembers what it was asked to start."""

    def __init__(self, glance: Glance, spool: Spool, store: Store) -> None:
        self.spool = spool
        self.store = store
        self.shown = glance
        self.started: list[tuple[Script, RunOptions]] = []
        self.interrupted = 0
        self.looked = 0
        self.unlocked: list[Owner] = []

    def glance(self) -> Glance:
        return self.shown

    def start(self, script: Script, options: RunOptions) -> None:
        self.started.append((script, options))

    async def interrupt(self) -> None:
        self.interrupted += 1

    async def look(self) -> None:
        self.looked += 1

    async def unlock(self, owner: Owner) -> bool:
        self.unlocked.append(owner)
        return True
