"""The catalogue in memory: failures, noise and stages of the shipped files, and of a user's own.

A user's entries come first; one with the id of a shipped entry replaces it. `Rules` is immutable but for what it computes
once (the compiled matcher), and is shared by all readers of a process.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from console.errors import InvalidFile, UsageError
from console.triage import cache, catalogue
from console.triage.entries import Cue, Failure, Noise, Stage, compiled
from console.triage.matcher import Matcher

SHIPPED: Final = ("failures.yaml", "noise.yaml", "stages.yaml")
DEFAULT_STALL: Final = 600.0

TRACEBACK: Final = r"Traceback \(most recent call last\)"
EXCEPTION: Final = r"(?:Error|Exception|Interrupt|Exit|Timeout|OutOfResources)(?::|\s*$)"
JSON: Final = r'^\{ ?"\w'
# what a line at ERROR level looks like, whoever wrote it: by name, and by the letter of c10 and of Ray
LOUD_LINE: Final = r"ERROR|CRITICAL|FATAL|[EF]\d{3,4} \d\d:\d\d:\d\d\.\d+ (?:\d+ )*[\w./-]+:\d+\]|,\d+ [EFC] \d+ \d+\]"
BUILT_IN: Final = (TRACEBACK, EXCEPTION, JSON, LOUD_LINE)
TRACEBACK_ID: Final = 0
EXCEPTION_ID: Final = 1
JSON_ID: Final = 2
LOUD_ID: Final = 3
ALARMS: Final = frozenset({TRACEBACK_ID, EXCEPTION_ID, LOUD_ID})
"""Without one of these in a line, and outside a traceback, an entry for exceptions does not hold."""
_EXCEPTION = re.compile(EXCEPTION)
# what may match a line end, or lost its anchor for the scan
_LOOSE = re.compile(r"\[\^|\\[sWD]|\^|\$")

Entry = Failure | Noise | Cue
_E = TypeVar("_E", Failure, Noise, Cue)


@dataclass(frozen=True, slots=True)
class Target:
    """What a pattern number stands for."""

    kind: str
    """traceback, exception, json, loud, failure, noise, stage, launch, version or fact."""
    entry: Any = None
    stage: str = ""

    loose: bool = False
    """A scan of many lines at once may find it where the line alone does not have it; such a hit is confirmed."""

    @property
    def often(self) -> bool:
        """Said for ever by a server that works; the first in a block tells all."""
        return self.stage in ("ready", "first_inference", "serving") or (
            self.kind == "fact" and "(?P<moving>" in self.entry.match
        )

    @property
    def late(self) -> bool:
        """Looked for only where an alarm stands (`ALARMS`), or a traceback is open."""
        return self.kind == "failure" and self.entry.where == "exception"

    def confirmed(self, text: str, raw: str) -> bool:
        """Whether the line has it: in its text, or, where the pattern is about the prefix, in the whole of it."""
        if self.entry is None:
            return self.kind != "exception" or bool(_EXCEPTION.search(text))
        pattern = compiled(self.entry.match)
        return bool(pattern.search(text)) or ("^" not in self.entry.match and bool(pattern.search(raw)))


@dataclass(frozen=True)
class Rules:
    failures: tuple[Failure, ...] = ()
    noise: tuple[Noise, ...] = ()
    stages: tuple[Stage, ...] = ()
    launches: tuple[Cue, ...] = ()
    versions: tuple[Cue, ...] = ()
    facts: tuple[Cue, ...] = ()
    stalls: Mapping[str, float] = field(default_factory=dict)
    """A profile's own stall limits, in seconds by stage."""

    def __deepcopy__(self, memo: object) -> Rules:
        return self

    def stall_seconds(self, stage: str | None) -> float:
        """Seconds without any line after which a living process counts as hung in `stage`."""
        if stage is not None and stage in self.stalls:
            return float(self.stalls[stage])
        return next((entry.stall for entry in self.stages if entry.id == stage), DEFAULT_STALL)

    def with_stalls(self, stalls: Mapping[str, float]) -> Rules:
        """The same rules with a profile's stall limits."""
        changed = replace(self, stalls=dict(stalls))
        for name in ("targets", "matcher", "late", "busy", "telling", "deadly", "moving", "plain_noise", "frames"):
            if name in self.__dict__:
                changed.__dict__[name] = self.__dict__[name]
        return changed

    def stage(self, name: str | None) -> Stage | None:
        return next((entry for entry in self.stages if entry.id == name), None)

    @functools.cached_property
    def targets(self) -> tuple[Target, ...]:
        """By pattern number."""
        return (
            Target("traceback"),
            Target("exception"),
            Target("json"),
            Target("loud"),
            *(_target("failure", rule) for rule in self.failures if rule.where != "unit"),
            *(_target("noise", rule) for rule in self.noise),
            *(_target("stage", cue, stage.id) for stage in self.stages for cue in stage.cues),
            *(_target("launch", cue) for cue in self.launches),
            *(_target("version", cue) for cue in self.versions),
            *(_target("fact", cue) for cue in self.facts),
        )

    @functools.cached_property
    def plain_noise(self) -> frozenset[int]:
        """Numbers of the patterns of noise that a scan finds surely and that is harmless in every stage."""
        return frozenset(
            n
            for n, target in enumerate(self.targets)
            if target.kind == "noise" and not (target.loose or target.entry.stages or target.entry.unless)
        )

    @functools.cached_property
    def frames(self) -> Mapping[str, str]:
        """Stage by the name of a function that runs in it alone."""
        return {name: stage.id for stage in reversed(self.stages) for name in stage.frames}

    @functools.cached_property
    def matcher(self) -> Matcher:
        """What every block is searched for."""
        return self._matcher(lambda target: not target.often and not target.late)

    @functools.cached_property
    def late(self) -> Matcher:
        """The messages of exceptions: half of all patterns, and needed only where there is an alarm."""
        return self._matcher(lambda target: target.late)

    @functools.cached_property
    def busy(self) -> Matcher:
        """The cues that a server repeats for ever, apart: a launch that has come to serving needs them no more."""
        return self._matcher(lambda target: target.often, once=True)

    @functools.cached_property
    def telling(self) -> Matcher:
        """What can change the stage of a launch that is neither ready nor failed, or make it fail."""
        return self._matcher(lambda target: not (target.often or target.late or target.kind == "noise"))

    @functools.cached_property
    def deadly(self) -> Matcher:
        """What can change the stage of a launch that is ready, or kill it."""
        return self._matcher(
            lambda target: (
                _moves(target) or target.kind == "exception" or (target.kind == "failure" and target.entry.fatal)
            )
        )

    @functools.cached_property
    def moving(self) -> Matcher:
        """What can change the stage of a launch that has failed, or begin the next."""
        return self._matcher(_moves)

    def _matcher(self, wanted: Callable[[Target], bool], *, once: bool = False) -> Matcher:
        chosen = [n for n, target in enumerate(self.targets) if wanted(target)]
        # `^` means the start of the text behind the prefixes, and `$` its end before any padding: confirmed later
        patterns = [unanchored(self.targets[n].entry.match) if self.targets[n].entry else BUILT_IN[n] for n in chosen]
        return Matcher(patterns, chosen, once=once or {JSON_ID})


def _moves(target: Target) -> bool:
    return not target.often and target.kind in ("json", "launch", "stage")


def _target(kind: str, entry: Entry, stage: str = "") -> Target:
    return Target(kind, entry, stage, bool(_LOOSE.search(entry.match)))


def unanchored(pattern: str) -> str:
    """The pattern without its `^` and `$`, wherever one stands: a scan of raw lines knows neither prefixes nor padding."""
    return re.sub(r"(?<![\\\[])[\^$]", "", pattern)


def load_rules(extra: Path | None = None) -> Rules:
    """The shipped catalogue, with the entries of `extra` before it. Raises InvalidFile with every problem of `extra`."""
    shipped = _shipped()
    if extra is None:
        return shipped
    try:
        text = extra.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{extra}: cannot be read: {error}", "give a YAML file with failures, noise or stages"
        ) from error
    parts = catalogue.read(text, str(extra))
    if parts.problems:
        raise InvalidFile(tuple(parts.problems))
    return _merged(shipped, parts)


def folder() -> Path:
    """Where the shipped files are."""
    import profiles

    return Path(profiles.__file__).parent


@functools.cache
def _shipped() -> Rules:
    texts = [(folder() / name).read_bytes() for name in SHIPPED]
    # the shape of an entry is code: a change of it must not meet what an older Relaunch has kept
    code = [Path(__file__).with_name(name).read_bytes() for name in ("catalogue.py", "entries.py")]
    made: list[catalogue.Parts] = []

    def parse() -> bytes | None:
        made.append(_parsed(texts))
        return catalogue.packed(made[0])

    kept = cache.kept((b"catalogue", *code, *texts), parse)
    whole = made[0] if made or kept is None else catalogue.unpacked(kept)
    return _merged(Rules(), whole)


def _parsed(texts: list[bytes]) -> catalogue.Parts:
    whole = catalogue.Parts()
    for name, text in zip(SHIPPED, texts, strict=True):
        parts = catalogue.read(text.decode(), name)
        for section in (*catalogue.SECTIONS, "problems"):
            getattr(whole, section).extend(getattr(parts, section))
    if whole.problems:
        raise InvalidFile(tuple(whole.problems))
    return whole


def _merged(base: Rules, parts: catalogue.Parts) -> Rules:
    own = {stage.id: stage for stage in parts.stages}
    known = {stage.id for stage in base.stages}
    stages = [_stage(stage, own[stage.id]) if stage.id in own else stage for stage in base.stages]
    stages += [stage for stage in parts.stages if stage.id not in known]
    return Rules(
        failures=_before(parts.failures, base.failures),
        noise=_before(parts.noise, base.noise),
        stages=tuple(stages),
        launches=_before(parts.launches, base.launches),
        versions=_before(parts.versions, base.versions),
        facts=_before(parts.facts, base.facts),
        stalls=base.stalls,
    )


def _stage(base: Stage, own: Stage) -> Stage:
    """A user's stage sets the stall limit and adds its cues."""
    return replace(base, stall=own.stall, title=own.title, cues=own.cues + base.cues, frames=own.frames + base.frames)


def _before(own: list[_E], base: tuple[_E, ...]) -> tuple[_E, ...]:
    taken = {entry.id for entry in own}
    return tuple(own) + tuple(entry for entry in base if entry.id not in taken)
