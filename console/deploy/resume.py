"""Which run of a node was left unfinished: by its console's own history, or by what stands on the node.

Only the newest run that could change anything counts: a later one that ended, however it ended, has taken the matter over.
"""

from __future__ import annotations

from dataclasses import dataclass

from console.deploy import deadman
from console.deploy.store import RunRow, Store, started
from console.errors import ExitCode
from console.node.facts import Facts

LOOKS = frozenset({"preflight", "bench"})
"""Scripts that deploy nothing, so that they leave nothing unfinished."""
HISTORY = 50


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A run to go on with. `here`: this console's history knows it; else only the node does."""

    run: str
    script: str
    here: bool
    text: str


def unfinished(store: Store, node: str, facts: Facts | None = None) -> Unfinished | None:
    """The run that `resume` goes on with; None when nothing was left. `facts` tell of runs of other consoles."""
    for row in store.runs(node=node, limit=HISTORY):
        if row.script in LOOKS or _only_looked(store, row):
            continue
        if row.code is None or row.code == ExitCode.INTERRUPTED:
            how = "was interrupted" if row.code is not None else "has no end: its console was killed, or still runs"
            return Unfinished(row.id, row.script, True, f"run {row.id} ({row.script}) {how}")
        break
    plan = None if facts is None else deadman.plan_of(facts)
    if plan is not None:
        text = f"run {plan.run} of another console left {node} in downtime"
        return Unfinished(plan.run, "redeploy" if plan.goal is None else "rollback", False, text)
    return None


def _only_looked(store: Store, row: RunRow) -> bool:
    first = started(store, row.id)
    return first is None or first.read_only
