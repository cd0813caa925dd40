"""What the last launch of a node and profile was mended with, out of the history: the ground of `--fix` and of `resume`.

Read from this account's store alone, never made up: a remedy is here because a run's own diagnosis named it. Whether it
still fits the profile is `console.deploy.fix.edits_again`'s to say.
"""

from __future__ import annotations

from dataclasses import dataclass

from console.deploy.store import Store, started
from console.errors import ExitCode
from console.events import Remedy

HISTORY = 50
"""Newest runs of the node that are looked at."""


@dataclass(frozen=True, slots=True)
class LastLaunch:
    """`applied` in order; `found` is the remedy that the run's failure asked for and that it did not apply."""

    run: str
    good: bool
    applied: tuple[Remedy, ...] = ()
    found: Remedy | None = None

    def remedies(self, *, found: bool) -> tuple[Remedy, ...]:
        """Those that were applied and, with `found`, the one that was not."""
        return (*self.applied, self.found) if found and self.found is not None else self.applied


def last_launch(store: Store, node: str, profile: str, *, before: str = "") -> LastLaunch | None:
    """The newest run that was to launch `profile` on `node`, plans apart; `before` is the id of the run in hand."""
    for row in store.runs(node=node, limit=HISTORY):
        if row.profile != profile or row.id == before:
            continue
        first = started(store, row.id)
        if first is None or first.read_only or "launch" not in first.steps:
            continue
        told = [event for event in store.told(row.id, Remedy.kind) if isinstance(event, Remedy)]
        good = row.code == ExitCode.DONE
        applied = tuple(remedy for remedy in told if remedy.applied)
        return LastLaunch(row.id, good, applied, None if good or not told or told[-1].applied else told[-1])
    return None
