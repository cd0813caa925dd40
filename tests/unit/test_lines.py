"""The splitter: the same bytes give the same lines in any chunking, and no line outgrows its cap."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.node.base import Line
from console.node.lines import CAP, Splitter

TRICKY = st.lists(
    st.sampled_from([b"\n", b"\r", b"\r\n", b"\r\r\n", b"a", b"word ", "ä".encode(), "🦙".encode(), b"\xff", b"\xc3", b"\x80",
                     b"\0", b"x" * 9]),
    max_size=40,
).map(b"".join)  # fmt: skip


def split(*chunks: bytes, cap: int = CAP) -> list[Line]:
    splitter = Splitter(cap=cap)
    return [line for chunk in chunks for line in splitter.feed(chunk)] + splitter.close()


def test_every_kind_of_line_end() -> None:
    assert split(b"one\ntwo\r\nbar 1\rbar 2\rend\n\nlast") == [
        Line("one"), Line("two"), Line("bar 1", replaces=True), Line("bar 2", replaces=True), Line("end"), Line(""),
        Line("last"),
    ]  # fmt: skip


def test_a_progress_bar_that_begins_with_cr_replaces_nothing_at_first() -> None:
    assert split(b"\r10%\r20%\n") == [Line("10%", replaces=True), Line("20%")]


def test_a_terminal_end_of_line_is_one_end() -> None:
    assert split(b"a\r\r\nb\n") == [Line("a"), Line("b")]


def test_a_bar_is_told_as_soon_as_the_next_begins() -> None:
    splitter = Splitter(err=True)
    assert splitter.feed(b"10%\r") == []  # a LF may follow
    assert splitter.feed(b"2") == [Line("10%", err=True, replaces=True)]
    assert splitter.close() == [Line("2", err=True)]


def test_a_stream_that_ends_in_cr() -> None:
    assert split(b"99%\r") == [Line("99%", replaces=True)]


@given(TRICKY, st.lists(st.integers(0, 200), max_size=12), st.sampled_from([4, 9, CAP]))
def test_chunks_do_not_matter(data: bytes, cuts: list[int], cap: int) -> None:
    edges = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    chunks = [data[start:end] for start, end in pairwise(edges)]
    whole = split(data, cap=cap)
    assert split(*chunks, cap=cap) == whole
    assert split(*(data[index : index + 1] for index in range(len(data))), cap=cap) == whole
    assert all(len(line.text) <= cap for line in whole)


@given(TRICKY)
def test_no_character_is_lost(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    assert "".join(line.text for line in split(data, cap=5)) == text.replace("\r", "").replace("\n", "")


@given(st.lists(st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=30)))
def test_plain_lines_come_out_as_they_went_in(lines: list[str]) -> None:
    assert split("".join(f"{line}\n" for line in lines).encode()) == [Line(line) for line in lines]


@pytest.mark.parametrize("extra", [0, 1, CAP])
def test_a_long_line_comes_in_pieces(extra: int) -> None:
    lines = split(b"x" * (CAP + extra) + b"\nnext\n")
    assert [len(line.text) for line in lines] == [CAP, *([extra] if extra else []), 4]
    assert [line.cut for line in lines] == [*([True] if extra else []), False, False]


def test_an_endless_line_is_not_held() -> None:
    splitter = Splitter()
    pieces = sum(len(splitter.feed(b"x" * 10_000)) for _ in range(1000))
    assert pieces == 10_000_000 // CAP
