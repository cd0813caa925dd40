"""One failure as everything that is known tells it: the run's cause, triage's diagnosis of the log, captured evidence.

The run's own cause comes first; what triage says of the log in hand is joined to it where both speak of the same line.
Nothing here talks to a node.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from console.deploy.store import state_folder
from console.events import CauseFound
from console.live import Glance
from console.logs.linefile import SEGMENT, LineFile
from console.text import clean
from console.triage import Diagnosis

AROUND = 3
"""Lines shown before and after the cause's own."""
EVIDENCE_BYTES = 64 << 20
"""A captured log larger than this is not searched for its neighbours."""
SEARCH_BYTES = 64 << 20
"""Newest bytes of the spool in which the cause's line is looked for, once: some 20 ms."""


@dataclass(frozen=True, slots=True)
class Account:
    """All that is known of one failure. None and empty are unknown. `line` counts from 1 in a log of `lines` lines."""

    title: str
    text: str
    process: str = ""
    ranks: int | None = None
    only_rank: int | None = None
    line: int | None = None
    lines: int | None = None
    stage: str = ""
    category: str = ""
    certain: bool = True
    meaning: str = ""
    remedy: str = ""
    fix: str = ""
    around: tuple[str, ...] = ()
    at: int = 0
    where: str = "log"
    outside: tuple[str, ...] = ()


def account(glance: Glance) -> Account | None:
    """The failure to show: the run's cause joined with triage's, triage's alone, or the run's last sentence."""
    run, found = glance.run, glance.log.diagnosis
    if run.cause is not None:
        return _joined(run.cause, found)
    if run.ended is not None and run.ended.code not in (0, 130) and not glance.running:
        step = next((step.name for step in run.steps if step.state == "failed"), run.verb)
        return Account(title=f"{step} failed", text=run.ended.text, remedy=run.ended.remedy)
    if found is not None and found.outcome in ("failed", "hung"):
        return of_log(found)
    return None


def of_log(found: Diagnosis) -> Account:
    """What triage says of a log."""
    cause = found.cause
    state = "is hung" if found.outcome == "hung" else "failed"
    return Account(
        title=f"the last launch {state}",
        text=cause.text if cause else "",
        process=(cause.process or "") if cause else "",
        ranks=cause.ranks if cause else None,
        only_rank=cause.only_rank if cause else None,
        line=cause.line if cause else None,
        lines=found.lines,
        stage=found.stage or "",
        category=found.category or "",
        certain=found.certain,
        meaning=found.meaning,
        remedy=found.remedy,
        fix=found.fix or "",
        around=cause.around if cause else (),
        at=cause.at if cause else 0,
        where=cause.where if cause else "log",
        outside=found.evidence,
    )


def same(cause: CauseFound, found: Diagnosis | None) -> bool:
    """Both speak of the same line."""
    return found is not None and found.cause is not None and _bare(found.cause.text) == _bare(cause.text)


def _joined(cause: CauseFound, found: Diagnosis | None) -> Account:
    more = of_log(found) if found is not None and same(cause, found) else Account("", "")
    return Account(
        title=f"{cause.step} failed",
        text=cause.text,
        process=cause.process or more.process,
        ranks=cause.ranks if cause.ranks is not None else more.ranks,
        only_rank=more.only_rank,
        line=more.line if more.line is not None else cause.line,
        lines=more.lines,
        stage=more.stage,
        category=cause.category or more.category,
        certain=more.certain,
        meaning=cause.meaning or more.meaning,
        remedy=cause.remedy or more.remedy,
        fix=cause.fix or more.fix,
        around=more.around,
        at=more.at,
        where=more.where,
        outside=more.outside,
    )


def evidence_folder(run: str) -> Path | None:
    """The folder with what the run captured when it failed, when there is one."""
    folder = state_folder() / "evidence" / run
    return folder if run and folder.is_dir() else None


def neighbours(path: Path, number: int) -> tuple[tuple[str, ...], int]:
    """Up to three lines on each side of line `number` (from 1) of a captured log, and where it is among them."""
    try:
        if os.stat(path).st_size > EVIDENCE_BYTES:
            return (), 0
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return (), 0
    if not 1 <= number <= len(lines):
        return (), 0
    first = max(0, number - 1 - AROUND)
    return tuple(clean(text) for text in lines[first : number + AROUND]), number - 1 - first


def find_line(log: LineFile, text: str, *, back: int = SEARCH_BYTES) -> int | None:
    """Offset of the last line that says what the cause says, among the newest `back` bytes."""
    said = max(clean(text).splitlines() or [""], key=len).strip()
    wanted = said[:200].encode("utf-8", "replace")
    if not wanted:
        return None
    for segment in range(log.segments - 1, max(-1, log.segments - 1 - back // SEGMENT), -1):
        begin, block = log.block(segment, segment + 1)
        found = block.rfind(wanted)
        if found >= 0:
            return log.start_of(begin + found)
    return None


def lines_around(log: LineFile, offset: int) -> tuple[tuple[str, ...], int]:
    """Up to three lines on each side of the one at `offset`, and where it is among them."""
    starts = [offset]
    while starts[0] > 0 and len(starts) <= AROUND:
        starts.insert(0, log.start_of(starts[0] - 1))
    at = len(starts) - 1
    last = offset
    while len(starts) - at <= AROUND:
        last += len(log.raw(last)) + 1
        if last >= log.size or log.start_of(last) != last:
            break
        starts.append(last)
    return tuple(log.line_at(start) for start in starts), at


def _bare(text: str) -> str:
    return " ".join(clean(text).split())
