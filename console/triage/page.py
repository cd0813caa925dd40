"""Words for people: the short answer of `relaunch diagnose`, and profiles/FAILURES.md, the page of known failures."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Final

from console.text import clean, redact
from console.triage.diagnosis import Cause, Diagnosis
from console.triage.entries import Failure
from console.triage.rules import Rules

WIDTH: Final = 160
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


def answer(found: Diagnosis) -> str:
    """The diagnosis in at most some twenty lines, the answer first."""
    lines = list(_answer(found))
    return "\n".join(redact(clean(line))[: WIDTH * 4] for line in lines)


def _answer(found: Diagnosis) -> Iterator[str]:
    engine = " ".join(part for part in (found.engine, found.version) if part)
    where = f" in stage {found.stage}" if found.stage and found.outcome != "ready" else ""
    yield f"{_OUTCOMES[found.outcome]}{where}{f' · {engine}' if engine else ''} · {found.lines:,} lines"
    if found.outcome == "empty":
        yield "There is nothing in it."
        return
    if found.category and found.outcome != "ready":
        yield f"category  {found.category}{'' if found.certain else ' (suspected)'}"
    if found.cause is not None:
        yield f"cause     {_whose(found.cause)}"
        yield from _around(found.cause)
    if found.meaning:
        yield f"meaning   {found.meaning}"
    if found.remedy:
        yield f"to do     {found.remedy}"
    if found.fix:
        yield f"fix       Relaunch can: {fix_words(found.fix)}"
    for said in found.evidence[:3]:
        yield f"outside   {said[:WIDTH]}"
    if found.progress is not None and found.outcome != "ready":
        yield f"weights   {found.progress.done}/{found.progress.total} shards"
    hidden = sum(each.count for each in found.noise)
    if hidden:
        names = ", ".join(f"{each.id} × {each.count}" for each in found.noise[:4])
        more = len(found.noise) - 4
        yield f"noise     {hidden:,} harmless lines: {names}{f', and {more} kinds more' if more > 0 else ''}"


def _whose(cause: Cause) -> str:
    parts = [f"line {cause.line:,}" if cause.line is not None else f"{cause.where} log"]
    if cause.process:
        parts.append(cause.process)
    if cause.ranks > 1:
        parts.append(f"× {cause.ranks} ranks")
    elif cause.only_rank is not None:
        parts.append(f"rank {cause.only_rank} only: look at that GPU")
    return " · ".join(parts)


def _around(cause: Cause) -> Iterator[str]:
    for place, text in enumerate(cause.around):
        if not text.strip(" ^~"):
            continue
        mark = ">" if place == cause.at else " "
        yield f"  {mark} {text.strip()[: WIDTH * 3 if mark == '>' else WIDTH]}"


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
    yield from (line[:WIDTH] for line in rule.example.splitlines())
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
