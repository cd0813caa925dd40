"""Every kind of failure that the catalogue started from, in small logs of our own; and the published cases, when they are there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from console.triage import Outside, Reader, load_rules
from console.triage.command import diagnosis_of

HERE = Path(__file__).parent / "triage_cases"
CASES: list[dict[str, Any]] = yaml.safe_load((HERE / "cases.yaml").read_text(encoding="utf-8"))
MORE: list[dict[str, Any]] = yaml.safe_load((HERE / "more.yaml").read_text(encoding="utf-8"))
SHARED = Path("/work/shared/cases/logs")


@pytest.mark.parametrize("case", [*CASES, *MORE], ids=[case["id"] for case in [*CASES, *MORE]])
def test_case(case: dict[str, Any]) -> None:
    given = case.get("outside")
    outside = Outside(**{**given, "kernel": tuple(given.get("kernel", ()))}) if given else None
    reader = Reader()
    reader.feed(case["log"].encode())
    found = reader.diagnosis(outside)
    expect = case["expect"]
    got = {
        "outcome": found.outcome,
        "category": found.category,
        "line": 0 if found.cause is None else found.cause.line,
        "fix": found.fix,
        "ranks": found.cause.ranks if found.cause else 0,
        "only_rank": found.cause.only_rank if found.cause else None,
        "stage": found.stage,
        "certain": found.certain,
        "noise": {each.id: each.count for each in found.noise},
    }
    assert {key: got[key] for key in expect} == expect
    if found.outcome != "ready":
        assert found.remedy


@pytest.mark.parametrize("case", [*CASES, *MORE], ids=[case["id"] for case in [*CASES, *MORE]])
def test_asked_after_every_line(case: dict[str, Any]) -> None:
    """Lines that are kept for later change no answer: as if each had been read when it came."""
    live, plain = Reader(), Reader()
    for line in case["log"].splitlines():
        live.feed_line(line)
        plain.feed(line.encode() + b"\n")
        assert (live.stage, live.failed) == (plain.stage, plain.failed), line
    assert live.diagnosis() == plain.diagnosis()


def test_every_entry_of_the_old_catalogue_is_met() -> None:
    """42 entries; each has a log here."""
    assert {number for case in CASES for number in case["d"]} == set(range(1, 43))


@pytest.mark.skipif(not SHARED.is_dir(), reason="the published cases are not on this machine")
def test_published_cases() -> None:
    rules = load_rules()
    wrong: list[tuple[str, str | None]] = []
    for path in sorted(SHARED.glob("*/expect.yaml")):
        expect = yaml.safe_load(path.read_text(encoding="utf-8"))
        found = diagnosis_of(str(path.with_name("log.txt")), rules)
        if expect["kind"] == "success" or expect.get("final_state") == "ready":
            if found.outcome != "ready" or found.cause is not None:
                wrong.append((path.parent.name, found.outcome))
        elif found.outcome not in ("failed", "hung", "unfinished") or found.category != expect["category"]:
            wrong.append((path.parent.name, found.category))
    assert wrong == []
