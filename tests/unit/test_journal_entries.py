"""journald's JSON and the calls that ask for it. Following a real journal: tests/node."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.errors import UsageError
from console.node.base import Line
from console.node.journal import LONGEST_ENTRY, entries_call, parse_entry, whole_lines

CURSOR = "s=cdd2;i=5a;b=a818;m=b3b;t=6616;x=3d8a"
ID = "0123456789abcdef0123456789abcdef"


def entry(**fields: object) -> str:
    base = {"__CURSOR": CURSOR, "__REALTIME_TIMESTAMP": "1795974876490708", "_PID": "12", "PRIORITY": "6"}
    return json.dumps(base | fields)


def test_a_plain_entry() -> None:
    found = parse_entry(entry(MESSAGE="hello", SYSLOG_IDENTIFIER="vllm", _SYSTEMD_INVOCATION_ID=ID))
    assert found is not None
    assert (found.cursor, found.time, found.message) == (CURSOR, 1795974876.490708, "hello")
    assert (found.pid, found.priority, found.source, found.invocation) == (12, 6, "vllm", ID)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (None, ""),
        ([99, 97, 102, 233], "caf\N{REPLACEMENT CHARACTER}"),
        (["one", "two"], "one\ntwo"),
        ([[104, 105], "two"], "hi\ntwo"),
        ([], ""),
        (["one", None], "one\n"),
    ],
)
def test_messages_in_their_odd_forms(message: object, text: str) -> None:
    found = parse_entry(entry(MESSAGE=message))
    assert found is not None
    assert found.message == text


def test_fields_that_occur_twice() -> None:
    found = parse_entry(entry(MESSAGE="x", _PID=["12", "13"], PRIORITY=[54]))
    assert found is not None
    assert (found.pid, found.priority) == (12, 6)


@pytest.mark.parametrize(
    "line",
    ["", "-- No entries --", "{", "{}", "[1]", '{"__CURSOR": "s=1"}', '{"__CURSOR": 1, "__REALTIME_TIMESTAMP": "1"}'],
)
def test_what_is_no_entry(line: str) -> None:
    assert parse_entry(line) is None


@given(st.text(max_size=100))
def test_no_line_crashes(line: str) -> None:
    parse_entry(line)
    parse_entry("{" + line)


def test_the_call() -> None:
    argv = entries_call("a.service", invocation=ID, cursor=CURSOR)
    assert argv[0] == "journalctl"
    assert f"--after-cursor={CURSOR}" in argv
    assert argv[-3:] == (f"_SYSTEMD_INVOCATION_ID={ID}", "+", f"INVOCATION_ID={ID}")
    assert "--lines=all" in argv
    assert "-f" in argv
    assert entries_call("a.service", lines=5, follow=False)[-3:] == ("--lines=5", "-u", "a.service")


@pytest.mark.parametrize("bad", [{"cursor": "x y"}, {"cursor": "$(id)"}, {"invocation": "zz"}])
def test_the_call_takes_only_what_a_journal_gives(bad: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        entries_call("a.service", **bad)  # type: ignore[arg-type]


async def lines(parts: Iterable[Line]) -> AsyncIterator[Line]:
    for part in parts:
        yield part


async def test_cut_lines_are_put_together_and_stderr_is_left_out() -> None:
    parts = [Line("one"), Line("tw", cut=True), Line("oops", err=True), Line("o", cut=True), Line("!"), Line("three")]
    assert [line async for line in whole_lines(lines(parts))] == ["one", "two!", "three"]


async def test_an_endless_line_is_dropped_and_the_next_is_whole() -> None:
    piece = "x" * (1 << 20)
    parts = [Line(piece, cut=True)] * (LONGEST_ENTRY // len(piece) + 2) + [Line("end"), Line("next")]
    assert [line async for line in whole_lines(lines(parts))] == ["next"]
