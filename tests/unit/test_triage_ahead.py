"""A log that is searched in a second thread, one block ahead, says what it says when it is read in one thread."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import yaml

from console.triage import Reader
from console.triage import reader as reader_module
from console.triage.ahead import Ahead

HERE = Path(__file__).parent / "triage_cases"


def test_the_answer_is_the_same_wherever_blocks_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """All small logs in one: many launches, JSON lines, CR and colours, so that blocks are searched out of turn too."""
    monkeypatch.setattr(reader_module, "BLOCK", 1)
    logs = [case["log"] for name in ("cases", "more") for case in yaml.safe_load((HERE / f"{name}.yaml").read_text())]
    dice = random.Random(7)
    for start in range(0, len(logs), 12):
        data = "\r".join(logs[start : start + 12]).encode()
        plain = Reader()
        plain.feed(data)
        ahead = Reader(ahead=True)
        try:
            at = 0
            while at < len(data):
                size = dice.choice((40, 700, 5000))
                ahead.feed(data[at : at + size])
                at += size
                if dice.random() < 0.05:
                    assert ahead.stage is None or isinstance(ahead.stage, str)
            assert ahead.diagnosis() == plain.diagnosis()
            assert ahead.lines == plain.lines
        finally:
            ahead.close()


def test_what_the_search_raises_is_raised_where_the_answer_is_taken() -> None:
    def scan(block: bytes) -> list[tuple[int, int]]:
        if not block:
            raise ValueError("nothing to search")
        return [(len(block), 0)]

    ahead = Ahead(scan)
    try:
        ahead.ask(b"")
        ahead.ask(b"ab")
        assert ahead.now(b"abc") == [(3, 0)]
        with pytest.raises(ValueError, match="nothing to search"):
            ahead.answer()
        assert ahead.answer() == [(2, 0)]
    finally:
        ahead.close()
