"""A run as a page: whole, redacted, escaped, and made of nothing outside itself."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from console.cli import main
from console.deploy import picture
from console.deploy.report import page, read_evidence
from console.deploy.runlog import ABOUT, GPU_MEMORY
from console.deploy.store import RunRow, open_store
from console.events import (
    CauseFound,
    Compared,
    Downtime,
    Event,
    Found,
    Measured,
    Noted,
    RunEnded,
    RunStarted,
    StepChanged,
)

SECRET = "hf_SentinelNobodyMayEverSee42"
EVIL = "<script>alert(1)</script>\x1b[31m"
EVENTS: tuple[Event, ...] = (
    RunStarted(time=100.0, run="0001", verb="redeploy", node="gpu1", profile="kimi", steps=("stop", "launch", "keep")),
    Found(time=100.5, step="preflight", level="allow", rule="fit", text="it fits", table="GPU 0  70.1 GiB of weights"),
    StepChanged(time=101.0, step="stop", state="running"),
    Downtime(time=101.0, state="started"),
    StepChanged(time=103.0, step="stop", state="done", detail=f"gone {EVIL}", seconds=2.0),
    StepChanged(time=104.0, step="launch", state="running"),
    Noted(time=104.0, text=f"token {SECRET}"),
    CauseFound(time=110.0, step="launch", text="ValueError: No valid attention backend", meaning="FP8 on SM120",
               remedy="patch", category="kv", process="Worker_TP0", ranks=8),
    Compared(time=110.5, what="kv-cache", unit="tokens", expected=2000.0, measured=1900.0, error=0.0526),
    StepChanged(time=111.0, step="launch", state="failed", detail="it died"),
    Measured(time=112.0, concurrency=4, input_tokens=64, output_tokens=32, completed=8, failed=0,
             output_tokens_per_s=161.5, total_tokens_per_s=None, ttft_ms={"p50": 40.0, "p99": 90.0}, tpot_ms={}, itl_ms={}),
    Downtime(time=120.0, state="ended", seconds=19.0),
    RunEnded(time=121.0, run="0001", code=11, text="restored", remedy="look at P2P", seconds=21.0, downtime=19.0),
)  # fmt: skip
ROW = RunRow("0001", "redeploy", "gpu1", "kimi", True, 100.0, 121.0, 11, "restored", "redeploy", 19.0)
LOG = "\n".join([*(f"line {n}" for n in range(40)), f"(Worker) ValueError: No valid attention backend {EVIL}", "after"])
EVIDENCE = {
    "journal.log": LOG,
    "unit.service": "[Service]\nExecStart=/opt/vllm serve\n",
    "kernel.log": "NVRM: Xid 79\n",
    GPU_MEMORY: "\n".join(json.dumps({"time": 100.0 + n, "used": [n << 30, None], "total": 96 << 30}) for n in range(9)),
    ABOUT: json.dumps({
        "host": "box", "driver": "595.71", "kernel": "6.8", "gpus": [["RTX", 96 << 30]] * 8, "cpus": 2, "memory": 1 << 34,
        "vllm": {"/opt/vllm": "0.16.0"}, "profile": {"environment": {"NCCL_PROTO": {"value": "LL", "source": "profile"}}},
    }),
}  # fmt: skip


class Outside(HTMLParser):
    """Every tag, and every attribute that could fetch something."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.fetched += [f"{tag} {name}" for name, _ in attrs if name in ("src", "href", "data", "srcset", "action")]


def test_everything_a_colleague_needs_is_there() -> None:
    text = page(ROW, EVENTS, EVIDENCE, last_downtime=25.0)
    for wanted in (
        "gpu1", "REHEARSAL", "ended with 11", "Downtime 19.0s, last time 25.0s", "look at P2P", "it died",
        "No valid attention backend", "FP8 on SM120", "same on 8 ranks", "from the log, line 41 of 42", "line 27",
        "<polyline", "GPU 0", "161.5", "90 ms", "<rect", "8 × RTX, 96.0 GiB", "0.16.0", "595.71", "NCCL_PROTO",
        "ExecStart=/opt/vllm serve", "Xid 79", "70.1 GiB of weights", "1,900 tokens, forecast 2,000 tokens (+5.3 %)",
        "/opt/vllm at the start",
    ):  # fmt: skip
        assert wanted in text, wanted


def test_it_stands_alone_and_keeps_secrets() -> None:
    text = page(ROW, EVENTS, EVIDENCE)
    outside = Outside()
    outside.feed(text)
    assert outside.fetched == []
    assert not outside.tags & {"script", "link", "img", "iframe", "object"}
    assert not re.search(r"https?://|url\(|@import", text)
    assert SECRET not in text
    assert "\x1b" not in text
    assert "<script>" not in text


def test_a_run_without_end_evidence_or_measure_has_a_page_too() -> None:
    row = RunRow("0002", "redeploy", "gpu1", "kimi", False, 1.0, None, None, "", "redeploy")
    text = page(row, EVENTS[:4], {ABOUT: "no json", GPU_MEMORY: "nor this\n{}"})
    assert "has no end" in text
    assert "had not ended" in text
    assert "<polyline" not in text
    assert page(row, (), {})


def test_pictures_of_nothing_are_nothing() -> None:
    assert picture.lines({}, title="t", unit="u") == ""
    assert picture.lines({"a": [(1.0, None)]}, title="t", unit="u") == ""
    assert picture.bars([], {}, title="t", unit="u") == ""
    drawn = picture.lines({"a<b": [(0.0, 0.0), (1.0, None), (2.0, 5.0), (3.0, 4.0)]}, title="t", unit="u")
    assert drawn.count("<polyline") == 2, "what is unknown is a gap, not a zero"
    assert "a<b" not in drawn


def test_the_verb_writes_the_page(tmp_path: Path, own_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_store() as store:
        run = store.begin("redeploy", "gpu1", "kimi", script="redeploy", rehearsal=False, started=100.0)
        for event in EVENTS:
            store.append(run, event)
    folder = own_home / "state/relaunch/evidence/0001"
    folder.mkdir(parents=True)
    (folder / "journal.log").write_text(LOG)
    assert read_evidence(folder) == {"journal.log": LOG}
    out = tmp_path / "page.html"
    assert main(["report", "1", "--out", str(out)]) == 0
    assert str(out) in capsys.readouterr().out
    assert "from the log" in out.read_text()
    assert out.stat().st_mode & 0o777 == 0o600
    assert main(["report", "9"]) == 2
    assert main(["report", "1", "--out", str(tmp_path / "none" / "x")]) == 1
