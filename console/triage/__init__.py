"""Triage: the first cause of a failed launch, live and from a file.

The contract. A `Reader` is fed the bytes or the lines of one server's log, as they come and in any pieces, and answers at
any time, without waiting: `stage` (the furthest stage that the last launch in the log has reached, see `entries.STAGES`),
`progress` (shards of the checkpoint read so far), `ranks` (how far each worker came), `diagnosis(outside)`. It knows no node
and no clock; its memory is bounded whatever the log's length; the same input gives the same answer in whatever pieces it
came. `load_rules` reads the catalogue in profiles/; a user's own file comes before it.

How a cause is found: cut at the last start; split on CR and LF; strip prefixes; put processes apart; keep tracebacks whole;
drop wrappers and noise; the strongest kind of evidence wins (cause, then symptom or unknown exception, then sign), of equal
ones that of a worker before the engine's before the server's, of those the earliest; equal texts of several ranks fold
into one. Facts from outside (`Outside`) are joined in. What failed before the server became ready and did not keep it from
becoming so is no failure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from console.triage.diagnosis import Cause, Diagnosis, LoadProgress, NoiseCount, Outside, RankState
    from console.triage.reader import Reader
    from console.triage.rules import Rules, load_rules
    from console.triage.verdict import kernel_evidence

_HOME = {
    "Cause": "diagnosis",
    "Diagnosis": "diagnosis",
    "LoadProgress": "diagnosis",
    "NoiseCount": "diagnosis",
    "Outside": "diagnosis",
    "RankState": "diagnosis",
    "Reader": "reader",
    "Rules": "rules",
    "kernel_evidence": "verdict",
    "load_rules": "rules",
}

__all__ = [
    "Cause",
    "Diagnosis",
    "LoadProgress",
    "NoiseCount",
    "Outside",
    "RankState",
    "Reader",
    "Rules",
    "kernel_evidence",
    "load_rules",
]


def __getattr__(name: str) -> Any:
    # `relaunch --help` imports this package for its options alone; the catalogue loads when it is used.
    if name in _HOME:
        from importlib import import_module

        return getattr(import_module(f"console.triage.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
