"""How many shards of the checkpoint each rank has read, while weights load. Pure.

vLLM's bar of shards is written by one rank only, the first, and a rank that has loaded all of its weights says so. Between
the two the log is silent about the others: what they hold of memory, beside what the first one holds, tells how far they
are, since every rank of a tensor-parallel group reads the same files and keeps an equal part. Such a figure is an estimate
and is shown as one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from console.triage import Diagnosis
from console.triage.entries import ORDER

_NUMBERS = re.compile(r"\d+")
_PIPELINE = re.compile(r"PP\d+")
_LOADED = ORDER["weights_loaded"]


@dataclass(frozen=True, slots=True)
class Shards:
    """`done` of `total`; not `sure` where it is worked out from memory."""

    done: int
    total: int
    sure: bool

    def __str__(self) -> str:
        return f"{'' if self.sure else '~'}{self.done}/{self.total}"


def loading(diagnosis: Diagnosis | None) -> bool:
    """True while the log tells of shards being read: some rank may still read after another has loaded, and none does once
    the launch has come to the stage after that."""
    if diagnosis is None or diagnosis.outcome != "unfinished" or diagnosis.progress is None:
        return False
    return ORDER.get(diagnosis.stage or "", -1) <= _LOADED


def shards_by_rank(diagnosis: Diagnosis | None, held: Mapping[str, float]) -> dict[str, Shards]:
    """Shards by rank, as far as they can be told; empty while nothing loads. `held`: bytes of each rank, `TP3` or `PP0_TP3`."""
    if diagnosis is None or diagnosis.progress is None or not loading(diagnosis) or not held:
        return {}
    done, total = diagnosis.progress.done, diagnosis.progress.total
    ready = {rank.process.removeprefix("Worker_") for rank in diagnosis.ranks if _loaded(rank.stage)}
    first = min(held, key=lambda name: [int(number) for number in _NUMBERS.findall(name)])
    found: dict[str, Shards] = {}
    for name, amount in held.items():
        if name in ready:
            found[name] = Shards(total, total, True)
        elif name == first:
            found[name] = Shards(done, total, True)
        elif held[first] and _PIPELINE.findall(name) == _PIPELINE.findall(first):
            found[name] = Shards(min(total, round(done * amount / held[first])), total, False)
    return found


def behind(shards: Mapping[str, Shards], name: str) -> int:
    """How many shards a rank is behind the middle one; 0 where it is not, or cannot be told."""
    if name not in shards:
        return 0
    return max(0, round(median(one.done for one in shards.values())) - shards[name].done)


def _loaded(stage: str | None) -> bool:
    return ORDER.get(stage or "", -1) >= _LOADED
