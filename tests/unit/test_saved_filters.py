"""The operator's own filters: added to and taken out of their file, every other byte of which stays."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from console.cli import main
from console.errors import RelaunchError, UsageError
from console.logs.filters import Filter, load_presets, preset
from console.logs.saved import delete, owned, save, with_preset, without_preset, wrong_name
from console.settings import own_presets

OWN = """\
# mine, in git
errors:            # louder than the shipped one
  include: ["mine"]   # a word

# about the next one
slow:
  include:
    - took
    # inside
    - >-
      a long
      text
# the last word
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "dotfiles" / "filters.yaml"
    path.parent.mkdir()
    path.write_text(OWN)
    link = tmp_path / "filters.yaml"
    link.symlink_to(path)
    return link


def test_saved_and_deleted_by_name_and_everything_else_stays(own: Path) -> None:
    wanted = Filter(include=("a b", '/x"\\d/'), exclude=("ü #",), process="Worker_TP0", level="error", noise=True)
    os.chmod(own, 0o640)
    save(own, "mine.2", wanted)
    assert own.is_symlink()
    assert own.stat().st_mode & 0o777 == 0o640
    assert own.read_text().startswith(OWN)
    found = preset("mine.2", own)
    assert (found.include, found.exclude, found.process, found.level, found.noise) == (
        wanted.include, wanted.exclude, wanted.process, wanted.level, True,
    )  # fmt: skip
    delete(own, "mine.2")
    assert own.read_text() == OWN
    delete(own, "slow")
    assert own.read_text() == OWN.replace(OWN[OWN.index("slow:") : OWN.index("# the last")], "")
    delete(own, "errors")
    assert owned(own) == frozenset()
    assert own.read_text() == "# mine, in git\n\n# about the next one\n# the last word\n"
    assert list(own.parent.glob(".filters-*")) == list(own.resolve().parent.glob(".filters-*")) == []
    save(own, "again", Filter(level="warning"))
    assert [item.name for item in load_presets(own)] == ["again"]


def test_a_name_that_is_taken_or_bad_and_a_file_that_is_not_ours_to_change_are_refused(own: Path) -> None:
    for name in ("", "a b", "-x", "@x", "x" * 33, "errors", "ä", "x:\n"):
        assert wrong_name(own, name)
        with pytest.raises(UsageError):
            save(own, name, Filter(include=("x",)))
    with pytest.raises(UsageError, match="comes with Relaunch"):
        delete(own, "trouble")
    for text in (
        "{a: {include: [x]}}",
        "a: {include: [x]}\n---\n",
        "a: [\n",
        "a:\n  nonsense: 1\n",
        "a: {include: ['/(/']}\n",
    ):
        own.write_text(text)
        with pytest.raises(RelaunchError):
            save(own, "new", Filter(include=("x",)))
        assert own.read_text() == text
    own.write_text("{a: {include: [x]}, b: {include: [y]}}\n")
    with pytest.raises(UsageError, match="not changed from here"):
        delete(own, "a")


def test_a_saved_filter_is_one_of_the_command_line_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "server.log"
    log.write_text("one\ntwo\nthree\n")
    save(own_presets(), "t", Filter(include=("/^t/",), exclude=("three",)))
    assert main(["logs", str(log), "--filter", "@t"]) == 0
    assert capsys.readouterr().out == "two\n"


names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,31}\Z")
words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12).filter(lambda word: word[:1] != "/")


@settings(max_examples=30)
@given(st.dictionaries(names, st.lists(words, min_size=1, max_size=3), min_size=1, max_size=3))
def test_whatever_is_saved_is_read_again_or_refused_and_goes_without_a_trace(wanted: dict[str, list[str]]) -> None:
    text = "# kept\n"
    for name, include in wanted.items():
        with contextlib.suppress(UsageError):  # what YAML cannot hold
            after = with_preset(text, name, Filter(include=tuple(include)))
            assert without_preset(after, name) == text
            text = after
