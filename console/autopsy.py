"""Why a unit on a node runs, hangs or has died: its journal through triage, with what systemd and the kernel know of it.

Only reads: one `systemctl show`, the journal, one look at the facts. Of several starts the latest counts; where systemd has
begun another one that has said nothing yet, the one before it is explained, and the answer says so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from console.errors import RelaunchError, Unreachable, UsageError
from console.node import journal, systemd
from console.node.base import Node, capture
from console.node.facts import Facts, Question, UnitState, read_facts
from console.text import plural
from console.triage import Diagnosis, Outside, Reader, Rules, kernel_evidence

_STARTED = "ExecMainStartTimestampMonotonic"
_STAMP = re.compile(r"\[ *(\d+\.\d+)\] ")


@dataclass(slots=True)
class _Start:
    """One invocation, as far as the journal tells it."""

    reader: Reader
    invocation: str = ""
    last: float | None = None
    """UNIX time of the last line that a process of the unit wrote."""


async def explain_unit(node: Node, unit: str, rules: Rules) -> Diagnosis:
    """The diagnosis of the latest start of `unit`. Raises UsageError for a unit that systemd does not know and that has
    no journal."""
    name = systemd.unit_name(unit)
    block = systemd.parse_show(await capture(node, systemd.show((name,), (*systemd.PROPERTIES, _STARTED))))[0]
    state = systemd.parse_state(name, block)
    former, latest = await _starts(node, name, rules)
    if latest is None:
        if state.load == "not-found":
            raise UsageError(
                f"{node.name} has no unit {name}", "systemctl list-units 'vllm*' there shows what there is"
            )
        latest = _Start(Reader(rules), state.invocation)
    facts = await _facts(node, name)
    found = latest.reader.diagnosis(_outside(state, latest, facts, block.get(_STARTED, ""), rules))
    if former is not None and state.restarts and found.outcome in ("unfinished", "empty"):
        before = former.reader.diagnosis(Outside(alive=False))
        again = f"systemd started it again ({plural(state.restarts, 'restart')}); this is the start before"
        return replace(before, evidence=(*before.evidence, again))
    return found


async def _starts(node: Node, unit: str, rules: Rules) -> tuple[_Start | None, _Start | None]:
    """The last start but one, and the last."""
    former: _Start | None = None
    latest: _Start | None = None
    async with journal.read(node, unit) as entries:
        async for entry in entries:
            if latest is None or (entry.invocation and latest.invocation and entry.invocation != latest.invocation):
                former, latest = latest, _Start(Reader(rules), entry.invocation)
            latest.invocation = latest.invocation or entry.invocation
            for line in entry.message.split("\n"):
                latest.reader.feed_line(line)
            if entry.source != "systemd" and entry.pid != 1:
                latest.last = entry.time
    return former, latest


async def _facts(node: Node, unit: str) -> Facts | None:
    """The node's clock and kernel log; None where the script cannot run, which must not hide what the journal says."""
    try:
        return await read_facts(node, Question(units=(unit,)))
    except Unreachable:
        raise
    except RelaunchError:
        return None


def _outside(state: UnitState, start: _Start, facts: Facts | None, started: str, rules: Rules) -> Outside:
    alive = systemd.is_up(state) and state.sub != "auto-restart"
    silent = None
    if alive and facts is not None and start.last is not None:
        silent = max(0.0, facts.clock - start.last)
    return Outside(
        alive=alive,
        silent_seconds=silent,
        unit_result=None if alive else state.result,
        exit_status=None if alive else state.exit_status,
        kernel=() if facts is None else kernel_evidence(_since(facts.kernel_log, started), rules),
    )


def _since(lines: tuple[str, ...], started: str) -> list[str]:
    """The kernel's lines since the main process started (microseconds since boot); all where that is not known."""
    after = int(started) / 1e6 if started.isdigit() else 0.0
    stamped = ((_STAMP.match(line), line) for line in lines)
    return [line for stamp, line in stamped if stamp is None or float(stamp[1]) >= after]
