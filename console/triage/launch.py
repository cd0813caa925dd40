"""What is known of one launch: its stages, ranks, noise, candidates and signs of death. Fed with lines that matter.

`line()` gets a parsed line with the catalogue entries that were found in it. It decides, in this order: stage and facts;
whether the line belongs to a traceback; whether it is a failure, noise, or nothing. A line that matches noise and a failure
is a failure; an entry counts only in its stages, so that one text can be noise while compiling and a cause while serving.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from console.triage.candidates import LONGEST, Candidate, Candidates, weigh
from console.triage.entries import ORDER, READY, Failure, Noise, compiled
from console.triage.prefix import CALM, KERNEL, LOUD, QUIET, Line
from console.triage.rules import Rules, Target
from console.triage.tracebacks import Tracebacks, Unit, exception_name

MOST_RANKS: Final = 1024
MOST_RECENT: Final = 64
MOST_TOLD: Final = 256
_ANYWHERE = re.compile(r"(?:^|[\s:\]|])(?:[A-Za-z_]\w*\.)*\w+(?:Error|Exception|Interrupt|OutOfResources)(?::|\s*$)")
_IGNORED = ("Exception ignored in", "--- Logging error ---")
_HEADINGS: Final = ("Exception:", "Error:", "Exception", "Error")
_PYDANTIC = re.compile(r"\d+ validation errors? for ")
Above = Callable[[], list[str]]
"""Gives the up to three raw lines above."""
# Nothing calls these but a server that starts: after readiness they prove another launch, whose head is missing in the log.
_STARTING: Final = frozenset({
    "create_engine_config", "create_model_config", "from_vllm_config", "init_device", "init_worker_distributed_environment",
    "initialize_ray_cluster", "_init_workers_ray", "initialize_model", "determine_available_memory",
    "determine_num_available_blocks", "initialize_from_config", "init_torch_distributed", "wait_for_engine_startup",
})  # fmt: skip
_RANK_STAGE: Final = ORDER["weights_loaded"]


@dataclass(slots=True)
class Rank:
    process: str
    rank: int | None
    stage: str | None = None
    line: int = 0


@dataclass(slots=True)
class Stall:
    rule: Failure
    candidate: Candidate
    count: int = 1


@dataclass(slots=True)
class Launch:
    """Mutable; `copy.deepcopy` of it is a launch that can be fed on without touching this one."""

    rules: Rules
    first: int = 1
    stage: str | None = None
    stage_line: int = 0
    engine: str | None = None
    version: str | None = None
    ready: bool = False
    dead: int = 0
    """Line that proves that the server died; 0 while none does."""
    stopping: bool = False
    stopped: bool = False
    """It has said goodbye: whatever fails now is another launch."""
    noise: dict[str, int] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)
    ranks: dict[str, Rank] = field(default_factory=dict)
    candidates: Candidates = field(default_factory=Candidates)
    recent: deque[Candidate] = field(default_factory=lambda: deque(maxlen=MOST_RECENT))
    """Candidates since the server was ready, while it lives."""
    stalls: dict[str, Stall] = field(default_factory=dict)
    tracebacks: Tracebacks = field(default_factory=Tracebacks)
    ignored: set[str] = field(default_factory=set)
    waiting: list[Candidate] = field(default_factory=list)
    """Candidates that want the lines after them, to be shown around the cause."""
    growing: dict[str, Candidate] = field(default_factory=dict)
    told: set[str] = field(default_factory=set)
    """Texts that were shown with the lines after them; their repetitions fold into the first."""

    @property
    def order(self) -> int:
        return ORDER.get(self.stage or "", -1)

    @property
    def silent(self) -> bool:
        """Whether nothing of the server itself has been read yet."""
        return self.order < 0 and not (self.dead or self.candidates.kept or self.stopping)

    @property
    def wants_all(self) -> bool:
        """Whether the next lines matter whatever stands in them."""
        return bool(self.waiting) or bool(self.tracebacks)

    def line(self, number: int, line: Line, found: list[Target], before: Above) -> None:
        """`before` gives the up to three raw lines above, where the caller has them."""
        self._surround(line)
        if line.is_worker:
            self._seen(number, line)
        failures: list[Failure] = []
        noise: Noise | None = None
        exception = False
        for target in found:
            kind = target.kind
            if kind == "stage":
                self.reach(target.stage, number, line)
            elif kind == "failure":
                if self._holds(target.entry, line.text):
                    failures.append(target.entry)
            elif kind == "noise":
                noise = target.entry if noise is None and self._holds(target.entry, line.text) else noise
            elif kind in ("fact", "version"):
                self._learn(kind, target, line)
            else:
                exception = exception or kind == "exception"
        self._judge(number, line, failures, noise, before, exception)

    def reach(self, stage: str, number: int, line: Line) -> None:
        order = ORDER[stage]
        if line.key:
            self.candidates.passed(line.key, order, ORDER)
            if line.is_worker and (rank := self.ranks.get(line.key)) and order > ORDER.get(rank.stage or "", -1):
                rank.stage, rank.line = stage, number
        if order <= self.order:
            return
        self.stage, self.stage_line = stage, number
        self.stalls.clear()
        if order >= READY and not self.ready and not self.dead:
            self.ready = True
            self.candidates = Candidates()
            self.growing.clear()

    def begins_anew(self, line: Line, failures: list[Failure]) -> bool:
        """Whether this failure, after the server has ended as it was told to, is another launch's."""
        return (
            self.stopped
            and line.level not in QUIET
            and any(
                rule.where == "exception"
                and not rule.inside
                and (rule.kind == "cause" or (rule.kind == "symptom" and rule.fatal))
                and self._holds(rule, line.text)
                for rule in failures
            )
        )

    def _holds(self, entry: Failure | Noise, text: str) -> bool:
        if entry.stages and (self.stage or "argument_parsing") not in entry.stages:
            return False
        return not (entry.unless and compiled(entry.unless).search(text))

    def _learn(self, kind: str, target: Target, line: Line) -> None:
        match = compiled(target.entry.match).search(line.text)
        if not match:
            return
        got = {name: value for name, value in match.groupdict().items() if value}
        if kind == "version":
            self.version = got.get("version", self.version)
            self.engine = target.entry.engine or self.engine
        else:
            self.engine = self.engine or target.entry.engine or None
            self.facts.update(got)
            if "moving" in got:
                self.stalls.clear()

    def _seen(self, number: int, line: Line) -> None:
        rank = self.ranks.get(line.key)
        if rank is None:
            if len(self.ranks) < MOST_RANKS:
                self.ranks[line.key] = Rank(line.process or "", line.rank, None, number)
        elif line.process and line.process != rank.process and line.rank is not None:
            rank.process, rank.rank = line.process, line.rank

    def _surround(self, line: Line) -> None:
        if not self.waiting:
            return
        for each in self.waiting:
            each.after.append(line.text[:LONGEST])
        self.waiting = [each for each in self.waiting if len(each.after) < 3]

    # ---- what the line is ------------------------------------------------------------------------------------

    def _judge(
        self, number: int, line: Line, failures: list[Failure], noise: Noise | None, before: Above, exception: bool
    ) -> None:
        if line.text.startswith(_IGNORED):
            self.ignored.add(line.key)
        handled = line.level in QUIET or line.key in self.ignored
        what, unit, text = self.tracebacks.feed(number, line, handled=handled)
        if any(rule.inside for rule in failures):
            places = unit.places if what == "exception" and unit is not None else ()
            failures = [rule for rule in failures if not rule.inside or not rule.inside.isdisjoint(places)]
        if what == "head":
            self.ignored.discard(line.key)
            self.growing.pop(line.key, None)
            # a header may be glued to a record that says more ("Scheduler hit an exception: Traceback ...")
            self._plain(number, line, [rule for rule in failures if rule.kind == "wrapper"], before)
            return
        if what == "frame":
            return
        if what == "exception" and unit is not None:
            self._exception(number, line, text, unit, failures, noise)
            return
        if what == "message" and unit is not None:
            self._message(number, text, unit, failures)
            if noise and not failures:
                self._hide(noise)
            return
        if self._bare_exception(number, line, failures, noise, before, exception):
            return
        if not self._plain(number, line, failures, before) and noise:
            self._hide(noise)

    def _hide(self, noise: Noise) -> None:
        self.noise[noise.id] = self.noise.get(noise.id, 0) + 1

    def _exception(
        self, number: int, line: Line, text: str, unit: Unit, failures: list[Failure], noise: Noise | None
    ) -> None:
        if not failures and text.strip() == "AssertionError":
            failures = self._asserted(unit)
        rule = strongest(failures)
        if noise and (rule is None or rule.kind == "wrapper"):
            self._hide(noise)
            self.tracebacks.close(unit.key)
            return
        if rule and rule.kind in ("wrapper", "stop", "stall"):
            self._apply(rule, number)
            unit.state = "message"
            self.growing.pop(unit.key, None)
            return
        owner = unit.opener if unit.bare else line
        new = self._candidate(number, owner, text, rule, handled=unit.handled)
        new.before = unit.above()
        if self.ready and not self.dead and not unit.handled and not _STARTING.isdisjoint(unit.functions):
            self._die(number)
        if stage := self._framed(unit):
            new.stage, new.framed = stage, True
        self._keep(new, unit.key)

    def _asserted(self, unit: Unit) -> list[Failure]:
        """The entries for an assertion without a text: what was asserted is the source line above."""
        source = next((line.strip() for line in reversed(unit.above()) if line.strip().startswith("assert ")), "")
        text = f"AssertionError: {source}"
        return [
            rule
            for rule in self.rules.failures
            if source
            and rule.where == "exception"
            and not rule.inside
            and compiled(rule.match).search(text)
            and self._holds(rule, text)
        ]

    def _message(self, number: int, text: str, unit: Unit, failures: list[Failure]) -> None:
        grown = self.growing.get(unit.key)
        if grown is None or unit.state == "between":
            return
        grown.end = number
        rule = strongest(failures)
        if rule and rule.kind in ("cause", "symptom") and (grown.rule is None or _rank(rule) > _rank(grown.rule)):
            grown.rule = rule
            if rule.at and not grown.framed and ORDER[rule.at] > self.order:
                grown.stage = rule.at
            self._move(grown, number, text)
            self._apply(rule, number)
        elif (
            unit.message == 1 and _PYDANTIC.search(grown.text) and (grown.rule is None or grown.rule.kind == "symptom")
        ):
            if text.startswith("  "):
                self._move(grown, number, text)
            elif "." not in text.strip() or " " not in text.strip():
                unit.message = 0  # the field's path; the sentence is on the next line

    def _move(self, grown: Candidate, number: int, text: str) -> None:
        grown.before = [*grown.before, grown.text][-3:]
        grown.line, grown.text, grown.after = number, text.strip()[:LONGEST], []
        if grown not in self.waiting:
            self.waiting.append(grown)

    def _bare_exception(
        self,
        number: int,
        line: Line,
        failures: list[Failure],
        noise: Noise | None,
        before: Above,
        exception: bool,
    ) -> bool:
        """An exception's line with no traceback above it: SystemExit in a shell, a log that was cut, a record's own text."""
        if not exception or line.level in QUIET or not exception_name(line.text) or line.text.strip() in _HEADINGS:
            return False
        rule = strongest(failures)
        if noise and (rule is None or rule.kind == "wrapper"):
            return False
        if rule and rule.kind in ("wrapper", "stop", "stall"):
            self._apply(rule, number)
            return True
        if rule and rule.where == "line":
            return False
        if rule is None and "Warning" in line.text[:80]:
            return False
        unit = self.tracebacks.start_message(number, line, line.key in self.ignored)
        new = self._candidate(number, line, line.text, rule, handled=unit.handled)
        new.before = before()
        if (
            self.ready
            and not self.dead
            and line.level is None
            and rule
            and rule.kind == "cause"
            and rule.at
            and not unit.handled
        ):
            self._die(number)  # nobody logged it, and only a server that starts can say so
            new.stage = rule.at
        self._keep(new, unit.key)
        return True

    def _plain(self, number: int, line: Line, failures: list[Failure], before: Above) -> bool:
        """A line outside any traceback. True when a failure was found in it that is not noise."""
        taken = [rule for rule in failures if self._may_stand(rule, line)]
        rule = strongest(taken)
        for each in taken:
            self._apply(each, number)
        if rule is None or rule.kind in ("wrapper", "stop"):
            return bool(taken)
        new = self._candidate(number, line, line.text, rule, handled=False)
        new.before = before()
        if rule.kind == "stall":
            stall = self.stalls.get(rule.id)
            if stall:
                # what it waits for now, not what it waited for first
                new.keys |= stall.candidate.keys if new.fold == stall.candidate.fold else set()
                stall.candidate, stall.count = new, stall.count + 1
            else:
                self.stalls[rule.id] = Stall(rule, new)
                self.waiting.append(new)
            return True
        self._keep(new, None)
        return True

    def _may_stand(self, rule: Failure, line: Line) -> bool:
        """Whether an entry counts in a line outside a traceback. Servers log what users type: below a warning, and below
        an error once requests come, a line proves nothing but that a process waits or was told to stop."""
        if rule.where == "kernel":
            return line.process == KERNEL
        if rule.kind not in ("stall", "stop") and (line.level in CALM or (self.ready and line.level in QUIET)):
            return False
        if rule.where == "line" or rule.kind in ("wrapper", "stop"):
            return True
        if line.level in QUIET:
            return False
        return line.level in LOUD or bool(_ANYWHERE.search(line.text))

    # ---- candidates ------------------------------------------------------------------------------------------

    def _candidate(self, number: int, line: Line, text: str, rule: Failure | None, *, handled: bool) -> Candidate:
        native = rule is not None and rule.where in ("line", "kernel")
        stage = self.stage
        if rule is not None and rule.at and ORDER[rule.at] > self.order:
            stage = rule.at
        return Candidate(
            text=text.strip()[:LONGEST],
            line=number,
            process=line.process,
            key=line.key,
            rank=line.rank,
            weight=weigh(line, native),
            stage=stage,
            rule=rule,
            handled=handled or (rule is None and line.level in QUIET),
            ready=self.ready,
            end=number,
            keys={line.key} if line.key else set(),
        )

    def _keep(self, new: Candidate, key: str | None) -> None:
        if self.ready and self.stopping and not self.dead:
            return
        if key is not None:
            self.growing[key] = new
            if len(self.growing) > MOST_RECENT:
                del self.growing[next(iter(self.growing))]
        known = new.fold
        if known not in self.told or (self.ready and not self.dead):
            if len(self.told) < MOST_TOLD:
                self.told.add(known)
            if len(self.waiting) < MOST_RECENT:
                self.waiting.append(new)
        if self.ready and not self.dead:
            self.recent.append(new)
            if new.rule and new.rule.fatal and not new.handled:
                self._apply(new.rule, new.line)
        else:
            self.candidates.add(new)
            if new.rule:
                self._apply(new.rule, new.line)

    def _apply(self, rule: Failure, number: int) -> None:
        if rule.kind == "stop":
            self.stopping = True
            self.stopped = self.stopped or rule.fatal
        elif rule.fatal and not self.dead and not (self.ready and self.stopping):
            self._die(number)

    def _die(self, number: int) -> None:
        self.dead = number
        for each in self.recent:
            self.candidates.add(each)
        self.recent.clear()

    def _framed(self, unit: Unit) -> str | None:
        """The stage that the traceback's functions prove, the innermost first. What is fetched while the configuration is
        made belongs to the configuration; a server that was ready can only have failed at a request."""
        frames = self.rules.frames
        proved = [frames[function] for function in reversed(unit.functions) if function in frames]
        if self.ready and not (self.dead and not _STARTING.isdisjoint(unit.functions)):
            return "first_inference" if "first_inference" in proved and self.order == READY else None
        if self.order < ORDER["engine_init"] and "config_resolved" in proved:
            return "config_resolved"
        return proved[0] if proved else None


def strongest(failures: list[Failure]) -> Failure | None:
    """Of the entries found in one line; the first of equals, since a user's own stand first."""
    return max(failures, key=_rank, default=None)


def _rank(rule: Failure) -> int:
    return {"cause": 5, "symptom": 4, "stall": 3, "sign": 2, "stop": 1}.get(rule.kind, 0)
