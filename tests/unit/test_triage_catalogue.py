"""The shipped catalogue is sound, a user's file is linted to the place, and the page of known failures is made from the data."""

from __future__ import annotations

from pathlib import Path

import pytest

from console.errors import InvalidFile
from console.triage import Reader, load_rules
from console.triage import catalogue as catalogue_module
from console.triage.entries import STAGES, compiled, in_window
from console.triage.matcher import Matcher
from console.triage.page import failures_page
from console.triage.rules import folder

RULES = load_rules()
OWN = """\
failures:
  - id: our-proxy
    match: 'ProxyDenied: (?P<flag>--\\S+)'
    why: The proxy of this site says no.
    remedy: Ask the network people.
    source: us
    example: 'RuntimeError: ProxyDenied: --foo'
    fix: 'drop-flag:{flag}'
noise:
  - {id: our-noise, match: 'site banner', why: Ours., source: us, example: site banner}
stages:
  - {id: weights_loading, title: slow disks here, stall: '4000'}
"""


def test_shipped_files_have_what_an_entry_needs() -> None:
    assert len({rule.category for rule in RULES.failures}) >= 45
    assert {stage.id for stage in RULES.stages} == set(STAGES)
    for entry in (*RULES.failures, *RULES.noise):
        assert entry.source, entry.id
        assert entry.why.endswith((".", ")")), entry.id
    for rule in RULES.failures:
        assert rule.remedy, rule.id
        assert rule.title or rule.kind in ("wrapper", "stop"), rule.id


def test_every_shipped_pattern_runs_in_the_one_pass() -> None:
    assert not RULES.matcher._slow
    assert not RULES.busy._slow


def test_the_page_of_known_failures_is_up_to_date() -> None:
    page = (folder() / "FAILURES.md").read_text(encoding="utf-8")
    assert page == failures_page(RULES), "run python -m console.triage.pages"


def test_an_example_of_a_failure_is_found_in_an_otherwise_empty_log() -> None:
    for rule in RULES.failures:
        if rule.where in ("kernel", "unit") or rule.kind in ("wrapper", "stop", "stall"):
            continue
        stage = next(iter(sorted(rule.stages)), None)
        cue = next((s.cues[0].match for s in RULES.stages if s.id == stage and s.cues), None)
        reader = Reader(RULES)
        if cue and stage == "cuda_graph_capture":
            reader.feed_line("Capturing CUDA graphs (decode, FULL):  10%|")
        elif stage in ("memory_profiling", "weights_loaded", "torch_compile"):
            reader.feed_line("Model loading took 68.10 GiB memory and 40.1 seconds")
        elif stage == "first_inference":
            reader.feed_line("Starting vLLM server on http://0.0.0.0:8000")
        elif stage in ("ready", "cuda_graph_done"):
            reader.feed_line("Graph capturing finished in 5 secs, took 0.35 GiB")
        head = "(Worker_TP0 pid=3) ERROR 11-01 08:00:20 [x.py:1] "
        for function in sorted(rule.inside)[:1]:
            reader.feed_line(head + "Traceback (most recent call last):")
            reader.feed_line(head + f'  File "/v/x.py", line 7, in {function}')
        for line in rule.example.splitlines():
            reader.feed_line(head + line)
        found = reader.diagnosis()
        assert found.outcome == "failed", rule.id
        assert found.category == rule.category, (rule.id, found.rule)


def test_own_entries_come_first_and_own_stall_limits_hold(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(OWN, encoding="utf-8")
    rules = load_rules(own)
    assert rules.failures[0].id == "our-proxy"
    assert rules.stall_seconds("weights_loading") == 4000
    assert rules.with_stalls({"ready": 5}).stall_seconds("ready") == 5
    reader = Reader(rules)
    reader.feed(b"site banner\nRuntimeError: ProxyDenied: --foo\n")
    found = reader.diagnosis()
    assert (found.category, found.fix) == ("our-proxy", "drop-flag:--foo")
    assert [each.id for each in found.noise] == ["our-noise"]


WRONG = """\
failures:
  - id: Bad Id
    match: 'a('
    why: x
    remedi: y
    source: z
    example: q
    kind: reason
    stages: [weight_loading]
    fix: reboot
noise:
  - {id: twice, match: abc, why: w, source: s, example: abc}
  - {id: twice, match: abd, why: w, source: s, example: xyz}
stagess: []
"""


def test_a_wrong_file_is_told_every_problem_with_its_place(tmp_path: Path) -> None:
    parts = catalogue_module.read(WRONG, "own.yaml")
    told = [str(problem) for problem in parts.problems]
    for said in (
        "own.yaml:2:9: Bad Id.id: may hold small letters",
        "own.yaml:3:12: Bad Id.match: is no regular expression",
        "own.yaml:5:5: failures[0].remedi: unknown key; did you mean `remedy`?",
        "own.yaml:8:11: Bad Id.kind: must be one of cause, symptom, sign, wrapper, stall, stop",
        "`weight_loading` is no stage; did you mean `weights_loading`?",
        "own.yaml:10:10: Bad Id.fix: must be one of kv-patch",
        "own.yaml:13:10: twice.id: `twice` stands twice",
        "twice.example: is not matched by `match`",
        "own.yaml:14:1: file.stagess: unknown key; did you mean `stages`?",
    ):
        assert any(said in line for line in told), (said, told)
    own = tmp_path / "own.yaml"
    own.write_text(WRONG, encoding="utf-8")
    with pytest.raises(InvalidFile):
        load_rules(own)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "- a",
        "failures: {}",
        "failures: [1]",
        "failures: [{id: x}]",
        "a: [",
        "failures:\n\t- id: x",
        "noise: [{match: '.*'}]",
    ],
)
def test_files_that_are_no_catalogue_are_problems(text: str) -> None:
    assert catalogue_module.read(text, "x.yaml").problems


def test_matcher_falls_back_to_re_and_says_the_same() -> None:
    patterns = [rule.match for rule in RULES.failures if "^" not in rule.match]
    block = "\n".join(rule.example for rule in RULES.failures).encode()
    ours, plain = Matcher(patterns), Matcher(patterns, engine=False)

    def lines(matcher: Matcher) -> set[tuple[int, int]]:
        return {(block.count(b"\n", 0, end - 1), name) for end, name in matcher.scan(block)}

    assert lines(plain) <= lines(ours)
    behind = Matcher([r"a(?=b)", "c"])
    assert behind._slow
    assert behind.scan(b"ab c") == [(1, 0), (4, 1)]


@pytest.mark.parametrize(
    ("version", "window", "inside"),
    [
        ("0.16.0rc2.dev313+g1", ">=0.14,<0.18", True),
        ("0.18.0", ">=0.14,<0.18", False),
        ("0.17.9", ">=0.14,<0.18", True),
        ("0.9", "<0.10", True),
        (None, "<0.10", None),
        ("0.9", "", None),
        ("main", "<1", None),
        ("0.24.0", "==0.24", True),
    ],
)
def test_version_windows(version: str | None, window: str, inside: bool | None) -> None:
    assert in_window(version, window) is inside


def test_no_pattern_names_a_case() -> None:
    """A rule says what a line is, never which file it came from."""
    for entry in (*RULES.failures, *RULES.noise):
        assert "/home/" not in entry.match
        assert not compiled(entry.match).search("/srv/models/Kimi-K2.5-NVFP4"), entry.id
