from __future__ import annotations

import pickle
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.text import MASK, Secret, clean, duration, redact, size


@pytest.mark.parametrize(
    ("hostile", "safe"),
    [
        ("plain text", "plain text"),
        ("a\tb\nc", "a\tb\nc"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]2;owned\x07title", "title"),
        ("\x1b]52;c;aGk=\x1b\\copied", "copied"),
        ("\x9b31mc1", "c1"),
        ("x\x1bcreset", "xreset"),
        ("abc\u202eevil", "abcevil"),
        ("zero\u200bwidth", "zerowidth"),
        ("nul\x00byte", "nulbyte"),
        ("cr\rover", "crover"),
        ("\x1b]8;;http://x\x07link\x1b]8;;\x07", "link"),
        ("half \x1b]2;open title", "half "),
        ("Grüße 漢字", "Grüße 漢字"),
    ],
)
def test_clean(hostile: str, safe: str) -> None:
    assert clean(hostile) == safe


@given(st.text())
def test_clean_leaves_nothing_that_a_terminal_obeys(text: str) -> None:
    cleaned = clean(text)
    assert clean(cleaned) == cleaned
    assert not any(unicodedata.category(char) == "Cc" and char not in "\t\n" for char in cleaned)


@given(st.text(alphabet="\x1b[]\x9b\x9d;0m\x07\\Pab\u202e", max_size=40))
def test_clean_holds_for_tangled_escapes(text: str) -> None:
    cleaned = clean(text)
    assert "\x1b" not in cleaned
    assert "\x9b" not in cleaned
    assert "\u202e" not in cleaned


def test_a_secret_cannot_be_printed_or_stored() -> None:
    secret = Secret("hf_sentinel_value")
    shown = f"{secret} {secret!r} {[secret]} {secret!s} {secret:>30}"
    assert "sentinel" not in shown
    assert secret.reveal() == "hf_sentinel_value"
    with pytest.raises(TypeError):
        pickle.dumps(secret)
    assert bool(secret)
    assert not Secret("")


def test_redact_masks_known_secrets_and_token_shapes() -> None:
    text = "token=topsecret and hf_abcdefgh12345 and --api-key sk-local and Authorization: Bearer abcdefgh.ijk"
    masked = redact(text, [Secret("topsecret"), Secret("")])
    assert "topsecret" not in masked
    assert "hf_abc" not in masked
    assert "sk-local" not in masked
    assert "abcdefgh.ijk" not in masked
    assert masked.count(MASK) == 4


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (540_100_000_000, "540.1 GB"),
        (999_960, "1.0 MB"),
        (5e15, "5000.0 TB"),
    ],
)
def test_size(count: float, words: str) -> None:
    assert size(count) == words


@pytest.mark.parametrize(("seconds", "words"), [(0.31, "0.3s"), (59.94, "59.9s"), (151, "2:31"), (3723, "1:02:03")])
def test_duration(seconds: float, words: str) -> None:
    assert duration(seconds) == words
