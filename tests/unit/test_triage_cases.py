"""Every kind of failure that the catalogue started from, in small logs of our own; and the published cases, when they are there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from console.triage import Outside, Reader, load_rules
from console.triage.command import diagnosis_of
from console.triage.prefix import KERNEL, parse

HERE = Path(__file__).parent / "triage_cases"
CASES: list[dict[str, Any]] = yaml.safe_load((HERE / "cases.yaml").read_text(encoding="utf-8"))
MORE: list[dict[str, Any]] = [
    case for name in ("more", "wild") for case in yaml.safe_load((HERE / f"{name}.yaml").read_text(encoding="utf-8"))
]
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
        "rule": found.rule,
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


def test_where_the_ranks_join_a_silent_log_is_told_what_may_block_them() -> None:
    reader = Reader()
    reader.feed(b"(Worker pid=3) INFO 05-16 13:08:59 [pynccl.py:69] vLLM is using nccl==2.27.5\n")
    for outside in (Outside(), Outside(alive=True, silent_seconds=4000)):
        found = reader.diagnosis(outside)
        assert found.category == "hang_nccl_init"
        assert found.cause is None
        assert "NCCL_P2P_DISABLE=1" in found.remedy


def test_a_unit_that_starts_again_is_not_judged_by_its_last_life_while_it_lives() -> None:
    reader = Reader()
    reader.feed(next(case["log"] for case in MORE if case["id"] == "unit-starts-again-and-has-said-nothing").encode())
    assert reader.diagnosis().outcome == "failed"
    assert reader.diagnosis(Outside(alive=True, silent_seconds=1)).outcome == "unfinished"
    reader.feed(
        b"Apr 02 03:00:19 n4 vllm[44]: (APIServer pid=44) INFO 04-02 03:00:19 [m.py:1] Resolved architecture: K\n"
    )
    assert reader.diagnosis().outcome == "unfinished"


@pytest.mark.parametrize(
    "lead",
    [
        "Apr 02 03:22:17 n4 kernel: ",
        "2026-04-02T03:22:17+0200 n4 kernel: ",
        "[ 8123.556012] ",
        "[Thu Apr  2 03:22:17 2026] ",
    ],
)
def test_the_kernels_lines_are_known_by_their_prefix(lead: str) -> None:
    line = parse(lead + "NVRM: Xid (PCI:0000:c1:00): 79, GPU has fallen off the bus.")
    assert (line.process, line.text[:4]) == (KERNEL, "NVRM")


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
