from __future__ import annotations

import io

from console.events import (
    CauseFound,
    Downtime,
    Found,
    Measured,
    Progressed,
    Remedy,
    RunEnded,
    RunStarted,
    StepChanged,
)
from console.printing import ASCII, UNICODE, Printer, glyphs, progress, wants_colour


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def told(stream: io.StringIO, *events: object, **how: object) -> str:
    printer = Printer(stream, signs=UNICODE, **how)  # type: ignore[arg-type]
    for event in events:
        printer(event)  # type: ignore[arg-type]
    return stream.getvalue()


STEPS = (
    RunStarted(time=0, run="0007", verb="redeploy", node="gpu1", profile="kimi", steps=("download",), rehearsal=True),
    StepChanged(time=1, step="download", state="checking"),
    StepChanged(time=1, step="download", state="running", detail="119 files"),
    *(
        Progressed(time=2, step="download", text="", done=n * 1e9, total=1e11, unit="bytes", rate=1e9, eta=100.0 - n)
        for n in range(0, 101, 2)
    ),
    StepChanged(time=9, step="download", state="done", detail="119/119, 540.1 GB", seconds=8.0),
)


def test_a_pipe_gets_whole_lines_and_few_of_them() -> None:
    text = told(io.StringIO(), *STEPS)
    assert "\r" not in text
    assert "\x1b" not in text
    assert text.count(" % ") == 11
    assert "gpu1 › kimi › run 0007 redeploy  REHEARSAL" in text
    assert "✓ download       8.0s  119/119, 540.1 GB\n" in text


def test_a_terminal_sees_one_line_move_and_it_is_cleared_at_the_end() -> None:
    text = told(Terminal(), *STEPS)
    assert text.count("\n") == 3
    assert text.endswith("✓ download       8.0s  119/119, 540.1 GB\n")
    assert "\r\x1b[K✓" in text


def test_a_failure_names_cause_place_reason_and_remedy() -> None:
    text = told(
        io.StringIO(),
        StepChanged(time=1, step="launch", state="failed", detail="ValueError: no backend", seconds=47.0),
        CauseFound(time=1, step="launch", text="ValueError: no backend", category="kv", meaning="0.16 knows bf16 only",
                   remedy="apply the patch", fix="kv-patch", process="Worker_TP0", ranks=8, line=110),
        Remedy(time=1, step="launch", name="kv-patch", text="bf16", diff="--- a\n+++ b\n x\n-c: 8\n+c: 16", applied=False),
        RunEnded(time=2, run="0007", code=11, text="glm-5 serves again", remedy="read the cause", seconds=60),
    )  # fmt: skip
    for part in (
        "✗ launch",
        "same on 8 ranks",
        "line 110",
        "why    0.16",
        "do     apply",
        "--fix applies it: bf16",
        "-c: 8",
        "+c: 16",
        "ended with 11",
    ):
        assert part in text


def test_unknown_figures_are_left_out_or_said_and_never_zero() -> None:
    assert progress(Progressed(time=0, step="d", text="asking the hub"), UNICODE) == "asking the hub"
    text = told(
        io.StringIO(),
        Measured(time=0, concurrency=4, input_tokens=1, output_tokens=1, completed=4, failed=2,
                 output_tokens_per_s=None, total_tokens_per_s=None, ttft_ms={}, tpot_ms={}, itl_ms={"p50": 16.1}),
    )  # fmt: skip
    assert "unknown tok/s" in text
    assert "2 FAILED" in text
    assert "ITL p50 16 ms" in text


def test_findings_and_downtime_are_told() -> None:
    text = told(
        io.StringIO(),
        Found(time=0, step="preflight", level="allow", rule="disk", text="1.2 TB free"),
        Found(time=0, step="preflight", level="warn", rule="p2p", text="P2P is off", remedy="ACS off"),
        Downtime(time=1, state="started"),
        Downtime(time=2, state="ended", seconds=151),
    )
    assert "1.2 TB" not in text
    assert "! p2p: P2P is off" in text
    assert "downtime ended after 2:31" in text


def test_colour_and_glyphs_follow_the_environment() -> None:
    assert wants_colour(Terminal(), {})
    assert wants_colour(Terminal(), {"NO_COLOR": ""})
    assert not wants_colour(Terminal(), {"NO_COLOR": "1"})
    assert not wants_colour(Terminal(), {"TERM": "dumb"})
    assert not wants_colour(Terminal(), {}, refused=True)
    assert not wants_colour(io.StringIO(), {})
    assert glyphs({"LANG": "de_DE.UTF-8"}) == UNICODE
    assert glyphs({"LANG": "de_DE.UTF-8", "LC_ALL": "C"}) == ASCII
    assert glyphs({"LC_ALL": "C.utf8"}) == UNICODE
    assert all(value.isascii() for value in ASCII.values())
