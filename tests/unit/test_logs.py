from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from console.errors import InvalidFile, UsageError
from console.logs import linefile
from console.logs import view as views
from console.logs.filters import Filter, expression, load_presets, parse, preset, understood
from console.logs.folds import Folds
from console.logs.harmless import Harmless, harmless
from console.logs.launches import Launches, processes
from console.logs.linefile import LogFile
from console.logs.spool import GAP, Spool
from console.logs.stamps import clock, newest, since, stamp
from console.logs.view import View, keep
from console.triage.entries import Noise
from console.triage.rules import load_rules

SEGMENT = 64


def _noise(name: str, match: str, **more: object) -> Noise:
    return Noise(id=name, match=match, why="harmless", source="test", **more)  # type: ignore[arg-type]


NOISE = Harmless(
    [
        _noise("symm-mem", "SymmMemCommunicator: Device capability"),
        _noise("moe", "Using default MoE config"),
        _noise("start", "^start of text"),
        _noise("shown", "worth a look", show=True),
    ]
)


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test crosses many segments."""
    for module in (linefile, views):
        monkeypatch.setattr(module, "SEGMENT", SEGMENT)


def finished(view: View, budget: int = 200) -> list[str]:
    while view.work(budget):
        pass
    found = [text for _, text in view.newest(10**6)]
    assert len(found) == len(view)
    return found


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(tmp_path / "log")


def test_lines_gaps_and_times(spool: Spool) -> None:
    spool.append(b"one\ntwo\r\nthr", now=100.0)
    assert spool.lines(0, 9) == ["one", "two"]
    spool.append(b"ee\n", now=200.0)
    spool.gap("link lost, 12 s missing", now=300.0)
    assert spool.lines(2, 9) == ["three", f"{GAP}link lost, 12 s missing"]
    starts = [spool.offset(number) for number in range(5)]
    assert [spool.since(moment) for moment in (0, 150, 200, 250, 999)] == [starts[place] for place in (0, 2, 2, 3, 4)]
    assert spool.time_of(starts[1]) == 100.0
    assert [spool.number(offset) for offset in starts[:4]] == [0, 1, 2, 3]
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
    assert [text for _, text in view.newest(2)] == ["line 9998", "line 9999"]
    spool.append(b"line new\n")
    view.work(500)
    assert [text for _, text in view.newest(1)] == ["line new"]
    assert not view.complete
    assert len(finished(view)) == 10_001
    middle = spool.offset(5000)
    assert spool.number(middle) == 5000
    assert view.shows(middle)
    assert view.before(middle, 2) == [spool.offset(4998), spool.offset(4999)]
    assert view.after(middle, 2) == [middle, spool.offset(5001)]


LINES = st.lists(
    st.one_of(
        st.sampled_from(["", "ERROR it", "Using default MoE config", "(Worker_TP1 pid=3) start of text", "x" * 150, "é n",
                         "start of text", "worth a look", "SymmMemCommunicator: Device capability ERROR", "a b", "a"]),
        st.text(alphabet="abE \té", max_size=12),
    ),
    max_size=40,
)  # fmt: skip
FILTERS = st.builds(
    Filter,
    include=st.lists(st.sampled_from(["a", "é", "/a+/", "/^a/", "/b$/", "/a\\s+b/", "/x.*/", "/^$/", "/(?=a)a/", "/[^a]b/"]),
                     max_size=2).map(tuple),
    exclude=st.lists(st.sampled_from(["b", "/^e/", "/.*E.*/"]), max_size=1).map(tuple),
    process=st.sampled_from(["", "Worker_TP1"]),
    level=st.sampled_from(["", "error"]),
    noise=st.booleans(),
)  # fmt: skip


@given(
    LINES,
    FILTERS,
    st.integers(1, 400),
    st.lists(st.integers(0, 40), max_size=3),
    st.tuples(st.integers(0, 40), st.integers(0, 40)),
)
@settings(max_examples=100, deadline=None)
def test_a_view_agrees_with_one_line_at_a_time(
    tmp_path_factory: pytest.TempPathFactory,
    lines: list[str],
    wanted: Filter,
    budget: int,
    stops: list[int],
    cut: tuple[int, int],
) -> None:
    """Whatever the filter, the slices, the moments at which lines arrive, and the window."""
    with Spool(tmp_path_factory.mktemp("view") / "log") as spool:
        at = 0
        spool.append_lines(lines[:at])
        view = View(spool, wanted, NOISE)
        for stop in sorted(stops):
            spool.append_lines(lines[at:stop])
            at = max(at, stop)
            view.work(budget)
        spool.append_lines(lines[at:])
        stored = spool.lines(0, 10**6)
        expected = list(keep(stored, wanted, NOISE))
        assert finished(view, budget) == expected
        assert sum(view.hidden.values()) == len(list(keep(stored, wanted))) - len(expected)
        starts = [spool.offset(number) for number in range(len(spool) + 1)]
        assert [spool.number(offset) for offset in starts[:-1]] == list(range(len(stored)))
        low, high = sorted(min(place, len(stored)) for place in cut)
        window = View(spool, wanted, NOISE, (starts[low], starts[high]))
        assert finished(window, budget) == list(keep(stored[low:high], wanted, NOISE))
        fresh = View(spool, wanted, NOISE)
        assert finished(fresh, 10**6) == expected
        assert fresh.after(0, 10**6) == fresh.before(spool.size, 10**6)


@given(st.lists(st.text(alphabet="ab\r\x1b\u202e", max_size=90), max_size=12), st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_plain_file_is_shown_whole_also_its_last_line_without_an_end(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], ended: bool
) -> None:
    path = tmp_path_factory.mktemp("file") / "server.log"
    path.write_bytes("\n".join(lines).encode() + (b"\n" if ended and lines else b""))
    with LogFile(path) as log:
        raw = path.read_bytes().split(b"\n")
        raw = raw if raw[-1] else raw[:-1]
        assert finished(View(log, Filter())) == [linefile.shown(line) for line in raw]
        assert len(log) == len(raw)
        assert not any(char in text for text in log.lines(0, 99) for char in "\r\x1b\u202e")


def test_a_file_that_grows_is_followed_and_one_that_is_replaced_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text("one\ntw")
    with LogFile(path) as log:
        view = View(log, Filter())
        assert finished(view) == ["one", "tw"]
        assert not log.poll()
        with path.open("a") as file:
            file.write("o\n" + "three\n" * 40)
        assert log.poll()
        assert finished(view) == ["one", "two", *["three"] * 40]
        path.write_text("new\n")
        assert log.poll()
        assert log.generation == 1
        assert finished(View(log, Filter())) == ["new"]


TRACE = """\
(Worker_TP0 pid=7) ERROR 02-20 14:31:41 [core.py:1] Traceback (most recent call last):
(Worker_TP1 pid=8) ERROR 02-20 14:31:41 [core.py:1] Traceback (most recent call last):
(Worker_TP0 pid=7) ERROR 02-20 14:31:41 [core.py:1]   File "a.py", line 1, in load
(APIServer pid=5) INFO 02-20 14:31:41 [api.py:1] something else
(Worker_TP1 pid=8) ERROR 02-20 14:31:41 [core.py:1]   File "a.py", line 1, in load
(Worker_TP0 pid=7) ERROR 02-20 14:31:41 [core.py:1]     raise ValueError
(Worker_TP0 pid=7) ERROR 02-20 14:31:41 [core.py:1] ValueError: no backend
""".splitlines()


def test_interleaved_tracebacks_fold_each_under_its_own_head(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linefile, "SEGMENT", 512)
    spool.append_lines(["before", *TRACE, "after"])
    folds = Folds(spool)
    starts = [spool.offset(number) for number in range(len(spool))]
    assert [folds.frames(starts[1]), folds.frames(starts[2])] == [2, 1]
    assert [role for _, role in folds.members(starts[1])] == ["head", "frame", "frame", "exception"]
    assert folds.of(starts[0]) is folds.of(starts[4]) is None


LAUNCH = [
    "(APIServer pid={p}) INFO 02-20 14:00:0{n} [api_server.py:1] vLLM API server version 0.16.0",
    "(APIServer pid={p}) INFO 02-20 14:00:1{n} [utils.py:1] non-default args: {{'model': 'x'}}",
    "(EngineCore pid={p}) INFO 02-20 14:00:2{n} [core.py:1] Initializing a V1 LLM engine (v0.16.0) with config: model='x'",
    "(Worker_TP0 pid={p}) INFO 02-20 14:00:3{n} [gpu_model_runner.py:1] Starting to load model x...",
    "(Worker_TP0 pid={p}) INFO 02-20 14:00:4{n} [w.py:1] Loading safetensors checkpoint shards:  48% Completed | 57/119 [00:10<00:11,  5.1it/s]",
]


def test_the_launch_before_and_a_stage_have_their_places(spool: Spool) -> None:
    for number in range(3):
        spool.append_lines([line.format(p=number + 10, n=number) for line in LAUNCH])
    assert len(spool) == 15
    launches = Launches(spool, load_rules())
    while launches.work(4):
        pass
    present, previous = launches.present, launches.previous
    assert present is not None
    assert previous is not None
    assert (spool.number(present.begin), present.end) == (10, None)
    assert (spool.number(previous.begin), previous.end) == (5, present.begin)
    loading = present.stage("weights_loading")
    assert loading is not None
    assert spool.number(loading[0]) == 14
    assert dict(processes(spool))["EngineCore"] == 3


def test_lines_tell_their_time_and_a_window_is_found_by_it(spool: Spool) -> None:
    now = stamp("2026-03-01T00:00:00Z")
    assert now == 1772323200
    assert stamp("INFO 02-20 14:31:41 [x.py:1] hi", now) == stamp("2026-02-20 14:31:41 hi")
    assert stamp("Dec 31 23:00:00 gpu1 vllm[1]: x", now) == stamp("2025-12-31 23:00:00")
    assert stamp("no time") is None
    assert clock("INFO 02-20 14:31:41 [x.py:1] hi") == "14:31:41"
    spool.append_lines(
        f"2026-02-20 14:{number // 60:02}:{number % 60:02} line {number}\nundated" for number in range(600)
    )
    last = newest(spool)
    assert last == stamp("2026-02-20 14:09:59")
    for back in (0, 60, 300, 599, 5000):
        offset = since(spool, last - back)
        assert offset is not None
        assert spool.line_at(offset).endswith(f"line {max(0, 599 - back)}")
    assert since(spool, last + 5) == spool.size


def test_the_shipped_noise_compiles_and_agrees_with_itself() -> None:
    known = harmless(load_rules())
    for entry in known.entries:
        text = f"(Worker_TP0 pid=1) WARNING 02-20 14:31:41 [x.py:1] {entry.example}"
        block = b"first\n" + text.encode() + b"\nlast\n"
        assert [name for _, name in known.find(block)] == [name for name in [known.hides(text)] if name]
    assert all(known.why.values())


def test_a_typed_filter_is_understood() -> None:
    assert parse('error "out of memory" !/GET \\/health/ !tqdm') == Filter(
        include=("error", "out of memory"), exclude=("/GET \\/health/", "tqdm")
    )
    assert parse("/health !/v1") == Filter(include=("/health",), exclude=("/v1",))
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
    own = tmp_path / "own.yaml"
    own.write_text("errors: {include: [mine], reason: my own}\nmore: {process: Worker_TP3, reason: a rank}\n")
    assert preset("errors", own).include == ("mine",)
    assert understood("@more nccl !shm", own=own) == Filter(
        ("nccl",), ("shm",), "Worker_TP3", name="more", reason="a rank"
    )
    assert understood("a !b") == Filter(("a",), ("b",))
    with pytest.raises(UsageError, match="no preset"):
        preset("nonsense")
    bad = tmp_path / "filters.yaml"
    bad.write_text("a: {include: ['/(/'], level: loud}\nb: {inclde: [x]}\n")
    with pytest.raises(InvalidFile) as caught:
        load_presets(bad)
    text = caught.value.message
    assert "no regular expression" in text
    assert "inclde" in text
    assert "loud" in text
