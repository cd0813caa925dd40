from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from console.errors import InvalidFile, UsageError
from console.logs.filters import Filter, expression, load_presets, parse
from console.logs.spool import GAP, Spool
from console.logs.view import View

NOISE = [("symm-mem", "SymmMemCommunicator: Device capability"), ("moe", "Using default MoE config")]


def finished(view: View, budget: int = 200) -> list[str]:
    while view.work(budget):
        pass
    return [text for _, text in view.lines(0, len(view))]


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(tmp_path / "log")


def test_lines_gaps_and_times(spool: Spool) -> None:
    spool.append(b"one\ntwo\r\nthr", now=100.0)
    assert spool.lines(0, 9) == ["one", "two"]
    spool.append(b"ee\n", now=200.0)
    spool.gap("link lost, 12 s missing", now=300.0)
    assert spool.lines(2, 9) == ["three", f"{GAP}link lost, 12 s missing"]
    assert [spool.since(moment) for moment in (0, 150, 200, 250, 999)] == [0, 2, 2, 3, 4]
    assert spool.time_of(1) == 100.0
    spool.append(b"tail without end")
    spool.flush()
    assert spool.line(4) == "tail without end"


def test_what_a_terminal_would_obey_is_gone_before_it_is_stored(spool: Spool) -> None:
    spool.append(b"a\x1b[31mred\x1b[0m\x07\nopen \x1b]2;title\nnext \xff\xfe line\n\x00nul\n")
    assert spool.lines(0, 9) == ["ared", "open ", "next \ufffd\ufffd line", "nul"]
    assert b"\x1b" not in spool.path.read_bytes()


def test_a_spool_is_continued_and_half_a_line_of_a_killed_console_is_kept(tmp_path: Path) -> None:
    with Spool(tmp_path / "log") as first:
        first.append(b"one\ntwo\n")
    with (tmp_path / "log").open("ab") as file:
        file.write(b"hal")
    with Spool(tmp_path / "log") as again:
        again.append(b"three\n")
        assert again.lines(0, 9) == ["one", "two", "hal", "three"]


@given(st.lists(st.binary(max_size=30), max_size=12))
@settings(max_examples=60, deadline=None)
def test_any_chunking_gives_the_same_lines(tmp_path_factory: pytest.TempPathFactory, chunks: list[bytes]) -> None:
    folder = tmp_path_factory.mktemp("chunks")
    with Spool(folder / "whole") as whole, Spool(folder / "parts") as parts:
        whole.append(b"".join(chunks))
        for chunk in chunks:
            parts.append(chunk)
        whole.flush()
        parts.flush()
        assert whole.lines(0, 99) == parts.lines(0, 99)
        assert len(whole) == len(whole.lines(0, 10**6))


def test_a_view_is_what_a_plain_loop_would_say(spool: Spool) -> None:
    pick = random.Random(7)
    words = ["INFO start", "WARNING slow", "ERROR bad", "(Worker_TP1 pid=3) x", "(Worker_TP11 pid=4) y", "GET /health",
             "SymmMemCommunicator: Device capability 12.0", "ERROR SymmMemCommunicator: Device capability", ""]  # fmt: skip
    lines = [f"{pick.choice(words)} {number}" for number in range(3000)]
    spool.append("\n".join(lines).encode() + b"\n")
    for wanted, rule in (
        (Filter(noise=True), lambda line: True),
        (Filter(include=("error", "slow"), noise=True), lambda line: "ERROR" in line or "slow" in line),
        (Filter(exclude=("/health",), noise=True), lambda line: "/health" not in line),
        (Filter(process="Worker_TP1", noise=True), lambda line: "Worker_TP1 " in line),
        (Filter(level="error", exclude=("/bad [0-9]*7/",), noise=True),
         lambda line: "ERROR" in line and not re.search("bad [0-9]*7", line)),
        (Filter(), lambda line: not line.startswith("SymmMem")),
    ):  # fmt: skip
        assert finished(View(spool, wanted, NOISE)) == [line for line in lines if rule(line)], str(wanted)


def test_noise_is_counted_and_an_error_is_never_hidden(spool: Spool) -> None:
    spool.append(b"Using default MoE config\n" * 5 + b"ERROR Using default MoE config\nfine\n")
    view = View(spool, Filter(), NOISE)
    assert finished(view) == ["ERROR Using default MoE config", "fine"]
    assert view.hidden == {"moe": 5}


def test_the_newest_lines_are_there_after_one_slice_and_new_ones_first(spool: Spool) -> None:
    spool.append(b"".join(b"line %d\n" % number for number in range(10_000)))
    view = View(spool, Filter(include=("line",)))
    assert view.work(500)
    assert not view.complete
    assert view.lines(len(view) - 1, len(view)) == [(9999, "line 9999")]
    spool.append(b"line new\n")
    view.work(500)
    assert view.lines(len(view) - 1, len(view)) == [(10_000, "line new")]
    assert len(finished(view)) == 10_001
    assert view.place(5000) == 5000
    assert view.number(5000) == 5000


def test_a_typed_filter_is_understood() -> None:
    assert parse('error "out of memory" !/GET \\/health/ !tqdm') == Filter(
        include=("error", '"out', "of", 'memory"'), exclude=("/GET \\/health/", "tqdm")
    )
    assert parse('"out of memory" !tqdm') == Filter(include=("out of memory",), exclude=("tqdm",))
    assert str(parse("a !b")) == "a !b"
    assert str(Filter()) == "none"
    with pytest.raises(UsageError, match="no regular expression"):
        parse("/(/")
    with pytest.raises(UsageError, match="quotation"):
        parse('"open')
    assert re.search(expression("a.b"), "xA.By")
    assert not re.search(expression("a.b"), "axb")


def test_presets_ship_and_a_bad_file_names_every_problem(tmp_path: Path) -> None:
    assert {"trouble", "loading", "backends"} <= {preset.name for preset in load_presets()}
    assert all(preset.reason for preset in load_presets())
    bad = tmp_path / "filters.yaml"
    bad.write_text("a: {include: ['/(/'], level: loud}\nb: {inclde: [x]}\n")
    with pytest.raises(InvalidFile) as caught:
        load_presets(bad)
    text = caught.value.message
    assert "no regular expression" in text
    assert "inclde" in text
    assert "loud" in text
