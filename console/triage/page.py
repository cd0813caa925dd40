"""Words for people: the short answer of `relaunch diagnose`, and profiles/FAILURES.md, the page of known failures."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from itertools import groupby
from typing import Final

from console.text import clean, plural, redact
from console.triage.diagnosis import Cause, Diagnosis
from console.triage.entries import Failure
from console.triage.rules import Rules

NARROW: Final = 60
WIDTH: Final = 80
WIDE: Final = 110
"""Columns of an answer: the terminal's, within these."""
EXAMPLE: Final = 160
_LABEL: Final = 10
_HEAD_LINES: Final = 4
_TAIL_LINES: Final = 2
"""Of a cause that is longer: the lines of its beginning and of its end that are shown."""
_PLACE = re.compile(r'File "([^"]*)", line (\d+)')
_OUTCOMES: Final = {
    "failed": "FAILED",
    "ready": "READY",
    "hung": "HUNG",
    "unfinished": "UNFINISHED",
    "empty": "EMPTY",
}
_FIXES: Final = {
    "kv-patch": "patch the checkpoint's KV cache field to bfloat16",
    "kv-flag": "add --kv-cache-dtype bfloat16",
    "drop-flag": "drop the flag {}",
    "max-model-len": "set --max-model-len {}",
    "gpu-memory-utilization": "lower or raise --gpu-memory-utilization",
    "ready-timeout": "set VLLM_ENGINE_READY_TIMEOUT_S=3600",
}


def fix_words(fix: str) -> str:
    """`drop-flag:--swap-space` as a sentence."""
    verb, _, value = fix.partition(":")
    return _FIXES.get(verb, verb).format(value)


def answer(found: Diagnosis, width: int = WIDTH) -> str:
    """The diagnosis in at most some twenty-four lines of `width` columns, the answer first."""
    width = min(max(width, NARROW), WIDE)
    return "\n".join(line[:width] for line in _answer(found, width))


def _answer(found: Diagnosis, width: int) -> Iterator[str]:
    yield from _wrapped(_headline(found), width, "  ")
    if found.outcome == "empty":
        yield "There is nothing in it."
        return
    cause = found.cause
    if cause is not None:
        yield from _labelled("cause", _whose(cause), width)
        yield from _around(cause, width)
    if found.meaning and not (found.outcome == "unfinished" and cause is None):
        yield from _labelled("meaning", found.meaning if found.certain else f"(suspected) {found.meaning}", width)
    if found.remedy:
        yield from _labelled("to do", found.remedy, width)
    if found.fix:
        yield from _labelled("fix", f"Relaunch can {fix_words(found.fix)} (redeploy --fix)", width)
    for said in found.evidence[:3]:
        yield from _labelled("outside", said, width)
    if found.outcome != "ready":
        if found.category:
            yield from _labelled("category", found.category, width)
        if found.progress is not None and found.progress.done < found.progress.total:
            yield from _labelled("weights", f"{found.progress.done} of {found.progress.total} shards read", width)
    if found.noise:
        yield from _labelled("noise", _noise_words(found), width)


def _headline(found: Diagnosis) -> str:
    parts = [_OUTCOMES[found.outcome]]
    if found.stage and found.outcome != "ready":
        parts[0] += f" in stage {found.stage}"
    if found.engine:
        parts.append(" ".join(part for part in (found.engine, found.version) if part))
    parts.append(plural(found.lines, "line"))
    if found.launches > 1:
        parts.append(f"the last of {found.launches} launches")
    return " · ".join(parts)


def _noise_words(found: Diagnosis) -> str:
    hidden = sum(each.count for each in found.noise)
    names = ", ".join(f"{each.id} × {each.count}" for each in found.noise[:3])
    more = len(found.noise) - 3
    rest = f", and {plural(more, 'more kind')}" if more > 0 else ""
    return f"{plural(hidden, 'harmless line')}: {names}{rest}"


def _labelled(label: str, text: str, width: int) -> Iterator[str]:
    for place, line in enumerate(_wrapped(text, width - _LABEL)):
        yield f"{label if not place else '':<{_LABEL}}{line}"


def _wrapped(text: str, width: int, indent: str = "") -> list[str]:
    safe = redact(clean(text)).expandtabs(2)
    return textwrap.wrap(safe, width, subsequent_indent=indent, break_on_hyphens=False) or [""]


def _whose(cause: Cause) -> str:
    parts = [f"line {cause.line:,}" if cause.line is not None else f"{cause.where} log"]
    if cause.process:
        parts.append(cause.process)
    if cause.ranks > 1:
        parts.append(f"× {cause.ranks} ranks")
    elif cause.only_rank is not None:
        parts.append(f"rank {cause.only_rank} only: look at that GPU")
    return " · ".join(parts)


def _around(cause: Cause, width: int) -> Iterator[str]:
    """The cause, wrapped, with up to three lines before and after it, each cut to one."""
    for place, text in enumerate(cause.around):
        if not text.strip(" ^~"):
            continue
        if place != cause.at:
            yield f"    {_short(text, width - 4)}"
            continue
        lines = _wrapped(text.strip(), width - 4)
        if len(lines) > _HEAD_LINES + _TAIL_LINES:
            lines = [*lines[:_HEAD_LINES], "…", *lines[-_TAIL_LINES:]]
        for number, line in enumerate(lines):
            yield f"  {'>' if not number else ' '} {line}"


def _short(text: str, width: int) -> str:
    """One line of context: of a frame's path the end says more than the beginning."""
    text = redact(clean(text)).strip()
    if found := _PLACE.match(text):
        room = width - (len(text) - len(found[1]))
        if len(found[1]) > room > 8:
            text = text.replace(found[1], f"…{found[1][1 - room :]}", 1)
    return text if len(text) <= width else f"{text[: width - 1]}…"


def failures_page(rules: Rules) -> str:
    """profiles/FAILURES.md, made from the data."""
    shown = [rule for rule in rules.failures if rule.kind not in ("wrapper", "stop")]
    shown.sort(key=lambda rule: rule.category)
    parts = [
        "# Known failures",
        "",
        "Made from `failures.yaml` by `python -m console.triage.pages`; change the data, not this page. "
        "`relaunch diagnose FILE` finds these in a log.",
        "",
    ]
    for category, group in groupby(shown, key=lambda rule: rule.category):
        parts += [f"## {category}", ""]
        for rule in group:
            parts += list(_section(rule))
    return "\n".join(parts).rstrip("\n") + "\n"


def _section(rule: Failure) -> Iterator[str]:
    yield f"**{rule.title or rule.id}** (`{rule.id}`)"
    yield ""
    yield "```"
    yield from (line[:EXAMPLE] for line in rule.example.splitlines())
    yield "```"
    yield f"{rule.why}"
    yield ""
    yield f"*What to do:* {rule.remedy}"
    facts = [f"source: {rule.source}"]
    if rule.versions:
        facts.append(f"vLLM {rule.versions}")
    if rule.stages:
        facts.append(f"in stage {', '.join(sorted(rule.stages))}")
    if rule.fix:
        facts.append(f"Relaunch can {fix_words(rule.fix.replace('{flag}', '…').replace('{len}', '…'))}")
    yield ""
    yield "; ".join(facts)
    yield ""
