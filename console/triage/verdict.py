"""The verdict on one launch: outcome, cause, category and remedy, with facts from outside joined in. Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator

from console.triage.candidates import Candidate, Candidates
from console.triage.diagnosis import Cause, Diagnosis, LoadProgress, NoiseCount, Outcome, Outside, RankState
from console.triage.entries import ORDER, Failure, compiled, in_window
from console.triage.launch import Launch, Stall
from console.triage.rules import Rules

LOOK_OUTSIDE = (
    "The cause is not in this log. Look at the kernel log (journalctl -k, for the OOM killer and for Xid) and at the unit's "
    "result (systemctl show -p Result,ExecMainStatus)."
)
LOG_ENDS = (
    "The log just ends, without an error. If the process still runs, it is busy or hung in this stage; if it is gone, it was "
    "killed from outside: look at the kernel log (journalctl -k) and at the unit's result."
)
_STILL = "The process is alive and has said nothing for {seconds:.0f} s in stage {stage}; normal there are at most {limit:.0f} s."


def diagnose(launch: Launch, outside: Outside, *, lines: int, launches: int, blank: bool) -> Diagnosis:
    launch.candidates.settle()
    kernel = _kernel(launch, outside)
    best = _best(launch)
    stall = _stall(launch)
    outcome = _outcome(launch, outside, best, stall, kernel, blank)
    common = _Common(launch, outside, lines, launches)
    if outcome in ("ready", "empty"):
        return common.build(outcome, None, None, "", "", stage=launch.stage)
    if kernel and (best is None or best.strength < 3 or (best.rule is not None and best.rule.outside)):
        rule, text = kernel
        cause = Cause(text, None, None, 1, None, (text,), 0, where=rule.where)
        return common.build(outcome, cause, rule, rule.why, _remedy(rule, outside), stage=launch.stage)
    if best is not None:
        return _from_log(launch, outside, outcome, best, common)
    if stall is not None:
        cause = _cause(launch, stall.candidate)
        return common.build(
            outcome, cause, stall.rule, stall.rule.why, stall.rule.remedy, stage=launch.stage, certain=False
        )
    return _without_cause(launch, outside, outcome, common)


def _from_log(launch: Launch, outside: Outside, outcome: Outcome, best: Candidate, common: _Common) -> Diagnosis:
    rule = best.rule
    cause = _cause(launch, best)
    stage = _stage_of(launch, best)
    if rule is None:
        meaning = "An exception that the catalogue does not know; the line itself is the best explanation there is."
        return common.build(
            outcome, cause, None, meaning, "Read the lines around it.", stage=stage, category="unknown_exception",
            certain=False,
        )  # fmt: skip
    remedy = _remedy(rule, outside)
    return common.build(
        outcome, cause, rule, rule.why, remedy, stage=stage, fix=_fix(rule, best, launch.version),
        certain=rule.kind != "sign",
    )  # fmt: skip


def _remedy(rule: Failure, outside: Outside) -> str:
    if rule.category == "terminated_by_signal" and outside.terminated_by:
        return f"SIGTERM was sent by {outside.terminated_by}. {rule.remedy}"
    return rule.remedy


def _stage_of(launch: Launch, best: Candidate) -> str | None:
    """The traceback's own stage, else that of the first traceback that echoes the failure, else the last cue's."""
    if best.framed or best.stage is None:
        return best.stage or launch.stage
    echoes = (
        each for each in launch.candidates.kept if each.framed and each.line > best.line and each.ready == best.ready
    )
    echo = next(echoes, None)
    if echo is not None and ORDER.get(echo.stage or "", -1) > ORDER[best.stage]:
        return echo.stage
    return best.stage


def _without_cause(launch: Launch, outside: Outside, outcome: Outcome, common: _Common) -> Diagnosis:
    stage = launch.rules.stage(launch.stage)
    if outcome == "hung":
        limit = launch.rules.stall_seconds(launch.stage)
        said = _STILL.format(seconds=outside.silent_seconds or 0, stage=launch.stage or "start", limit=limit)
        remedy = (
            "Look at each GPU's utilisation and power, and at the kernel log; then stop the unit and start it again."
        )
        remedy = f"{stage.advice} {remedy}" if stage and stage.advice else remedy
        hang = stage.hang if stage else ""
        category = hang if hang.startswith("hang_") else "hang"
        return common.build(
            outcome, None, _known(launch, category), said, remedy, stage=launch.stage, category=category
        )
    category = (stage.hang if stage else "") or ("unfinished" if outcome == "unfinished" else "unknown")
    if outside.terminated_by:
        category, said = "terminated_by_signal", f"The server was told to stop by {outside.terminated_by}."
        return common.build(outcome, None, None, said, "Start it again.", stage=launch.stage, category=category)
    if outcome == "failed":
        said = "The launch failed, and no line of the log says why."
        return common.build(
            outcome, None, None, said, LOOK_OUTSIDE, stage=launch.stage, certain=False,
            category="killed_by_oom_killer" if category == "killed_by_oom_killer" else "unknown",
        )  # fmt: skip
    if outside.alive:
        limit = launch.rules.stall_seconds(launch.stage)
        silent = "" if outside.silent_seconds is None else f" It has been silent for {outside.silent_seconds:.0f} s."
        said = f"The server is alive and still starting, in stage {launch.stage or 'start'}.{silent}"
        wait = f"{said} Wait; up to {limit:.0f} s without a line are normal here."
        return common.build(outcome, None, None, said, wait, stage=launch.stage, category="unfinished", certain=False)
    rule = _known(launch, category)
    advice = (stage.advice if stage else "") or (rule.remedy if rule else "")
    remedy = f"{LOG_ENDS} {advice}".rstrip()
    said = f"The log ends in stage {launch.stage or 'start'}, without an error."
    return common.build(outcome, None, None, said, remedy, stage=launch.stage, category=category, certain=False)


class _Common:
    """What every diagnosis of this launch shares."""

    def __init__(self, launch: Launch, outside: Outside, lines: int, launches: int) -> None:
        self.launch, self.outside, self.lines, self.launches = launch, outside, lines, launches

    def build(
        self, outcome: Outcome, cause: Cause | None, rule: Failure | None, meaning: str, remedy: str, *,
        stage: str | None, category: str | None = None, fix: str | None = None, certain: bool = True,
    ) -> Diagnosis:  # fmt: skip
        launch = self.launch
        return Diagnosis(
            outcome=outcome,
            stage=stage,
            engine=launch.engine,
            version=launch.version,
            cause=cause,
            category=category or (rule.category if rule else None),
            meaning=meaning,
            remedy=remedy,
            fix=fix,
            certain=certain,
            noise=tuple(_noise(launch)),
            lines=self.lines,
            launches=self.launches,
            rule=rule.id if rule else None,
            progress=load_progress(launch),
            ranks=rank_states(launch),
            evidence=_evidence(self.outside) if outcome not in ("ready", "empty") else (),
            silent_seconds=self.outside.silent_seconds,
        )


def _best(launch: Launch) -> Candidate | None:
    if not launch.ready:
        return launch.candidates.best()
    if not launch.dead:
        return None
    # a server that had been ready: what it said long before it died was some request's trouble
    near = [each for each in launch.candidates.kept if each.line > launch.dead - 4000 and (each.ready or each.rule)]
    serious = [each for each in near if each.weight > 1 or (each.rule is not None and each.rule.fatal)]
    return Candidates().best(serious) or Candidates().best(near)


def _stall(launch: Launch) -> Stall | None:
    meant = [each for each in launch.stalls.values() if each.count >= each.rule.repeat]
    return min(meant, key=lambda each: each.candidate.line, default=None)


def _outcome(
    launch: Launch, outside: Outside, best: Candidate | None, stall: Stall | None, kernel: object, blank: bool
) -> Outcome:
    if blank:
        return "empty"
    ended = outside.alive is False and outside.unit_result not in (None, "success")
    if launch.ready:
        if launch.dead or ended:
            return "failed"
        return "hung" if stall is not None else "ready"
    if launch.dead or (best is not None and best.strength >= 1) or ended or (kernel and outside.alive is False):
        return "failed"
    if outside.alive and (outside.silent_seconds or 0) > launch.rules.stall_seconds(launch.stage):
        return "hung"
    if outside.alive is False:
        return "failed"
    return "failed" if best is not None and outside.alive is None and best.strength > 0.5 else "unfinished"


def _cause(launch: Launch, best: Candidate) -> Cause:
    before = best.before[-3:]
    around = (*before, best.text, *best.after[:3])
    workers = [rank for rank in launch.ranks.values()]
    ranks = max(1, len(best.keys))
    only = best.rank if ranks == 1 and best.rank is not None and len(workers) > 1 else None
    return Cause(
        text=best.text,
        line=best.line,
        process=best.process,
        ranks=ranks,
        context=(max(1, best.line - len(before)), max(best.end, best.line + len(best.after))),
        around=around,
        at=len(before),
        only_rank=only,
    )


def _fix(rule: Failure, best: Candidate, version: str | None) -> str | None:
    if not rule.fix or in_window(version, rule.versions) is False:
        return None
    match = compiled(rule.match).search(best.text)
    groups = {name: value for name, value in (match.groupdict() if match else {}).items() if value}
    try:
        return rule.fix.format(**groups)
    except KeyError:
        return None


def _kernel(launch: Launch, outside: Outside) -> tuple[Failure, str] | None:
    """The first line of the kernel log that the catalogue explains best, else the unit's result."""
    unit = []
    if outside.unit_result:
        unit.append(f"Result={outside.unit_result}")
        if outside.exit_status is not None:
            unit.append(f"Result={outside.unit_result} status={outside.exit_status}")
    for where, texts in (("kernel", outside.kernel), ("unit", tuple(unit))):
        rules = [rule for rule in launch.rules.failures if rule.where == where]
        found = [(rule, text) for text in texts for rule in rules if compiled(rule.match).search(text)]
        if found:
            return next((pair for pair in found if pair[0].kind == "cause"), found[0])
    return None


def kernel_evidence(lines: Iterable[str], rules: Rules, most: int = 64) -> tuple[str, ...]:
    """Of the kernel log's lines, in their order, those that the catalogue knows: what belongs into `Outside.kernel`."""
    known = [rule for rule in rules.failures if rule.where == "kernel"]
    found = (line for line in lines if any(compiled(rule.match).search(line) for rule in known))
    return tuple(itertools.islice(found, most))


def _known(launch: Launch, category: str) -> Failure | None:
    return next((rule for rule in launch.rules.failures if rule.category == category), None)


def _evidence(outside: Outside) -> tuple[str, ...]:
    said = list(outside.kernel[:8])
    if outside.unit_result:
        status = "" if outside.exit_status is None else f", status {outside.exit_status}"
        said.append(f"unit result {outside.unit_result}{status}")
    if outside.terminated_by:
        said.append(f"SIGTERM sent by {outside.terminated_by}")
    return tuple(said)


def _noise(launch: Launch) -> Iterator[NoiseCount]:
    reasons = {entry.id: entry.why for entry in launch.rules.noise}
    for name, count in sorted(launch.noise.items(), key=lambda pair: (-pair[1], pair[0])):
        yield NoiseCount(name, count, reasons.get(name, ""))


def load_progress(launch: Launch) -> LoadProgress | None:
    facts = launch.facts
    if "total" not in facts or "done" not in facts:
        return None
    size = re.match(r"[\d.]+", facts.get("gib", ""))
    loaded = sum(1 for rank in launch.ranks.values() if ORDER.get(rank.stage or "", -1) >= ORDER["weights_loaded"])
    return LoadProgress(
        done=int(facts["done"]),
        total=int(facts["total"]),
        total_bytes=int(float(size[0]) * 2**30) if size else None,
        ranks_done=loaded,
        ranks=int(facts.get("world", "0")) or len(launch.ranks),
    )


def rank_states(launch: Launch) -> tuple[RankState, ...]:
    found = [RankState(rank.process, rank.rank, rank.stage, rank.line) for rank in launch.ranks.values()]
    return tuple(sorted(found, key=lambda each: (each.rank is None, each.rank or 0, each.process)))
