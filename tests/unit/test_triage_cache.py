"""What is computed once is kept, and nothing but a slower start comes of a cache that is damaged, hostile or not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from console.triage import cache, catalogue
from console.triage.matcher import Matcher
from console.triage.rules import SHIPPED, _parsed, folder

PATTERNS = ["one", "two", "thr.e", "fo+r", "fi[vw]e", "s(?:ix|even)"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("RELAUNCH_NO_CACHE", raising=False)
    return tmp_path / "relaunch" / "triage"


def hits() -> object:
    return Matcher(PATTERNS).scan(b"one two\nthree foor\nfive six")


def test_a_second_time_nothing_is_made(place: Path) -> None:
    first = hits()
    kept = {path: path.read_bytes() for path in place.iterdir()}
    assert len(kept) == 1
    assert place.stat().st_mode & 0o777 == 0o700
    assert hits() == first
    assert {path: path.read_bytes() for path in place.iterdir()} == kept
    Matcher([*PATTERNS, "eight"])
    assert len(list(place.iterdir())) == 2, "other patterns have another name"


@pytest.mark.parametrize("damage", [b"", b"x" * 100, None], ids=["empty", "other", "cut"])
def test_a_damaged_file_counts_as_absent(place: Path, damage: bytes | None) -> None:
    first = hits()
    path = next(place.iterdir())
    whole = path.read_bytes()
    path.write_bytes(whole[:-7] + b"1234567" if damage is None else damage)
    assert hits() == first
    assert path.read_bytes()[32:] == whole[32:]


def test_a_database_that_hyperscan_refuses_is_made_anew(place: Path) -> None:
    first = hits()
    cache.store(next(place.iterdir()).name, b"whole, and no database")
    assert hits() == first


def test_a_folder_that_others_may_write_is_not_used(place: Path) -> None:
    hits()
    place.chmod(0o777)
    for path in place.iterdir():
        path.write_bytes(b"planted")
    assert hits()
    assert all(path.read_bytes() == b"planted" for path in place.iterdir())


def test_where_nothing_can_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert hits()
    assert cache.load("0" * 64) is None


def test_old_files_make_room(place: Path) -> None:
    for number in range(cache.MOST_FILES + 9):
        cache.store(f"{number:064}", b"x")
    assert len(list(place.iterdir())) == cache.MOST_FILES


def test_parts_survive_packing() -> None:
    parts = _parsed([(folder() / name).read_bytes() for name in SHIPPED])
    assert catalogue.unpacked(catalogue.packed(parts)) == parts
