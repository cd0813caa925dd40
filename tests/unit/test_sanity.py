"""Garbage as it has been seen in the field, and honest answers that look a little like it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.deploy.sanity import sense, shown

CAPITAL = "What is the capital of France? Answer with one word."

GARBAGE = {
    "bangs": "!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!",
    "few bangs": "!!!!!!",
    "spaced bangs": "! ! ! ! ! ! ! ! ! ! ! !",
    "one token": "the the the the the the the the the the the the",
    "one token glued": "PARISPARISPARISPARISPARISPARISPARISPARISPARISPARISPARIS",
    "one syllable glued": "lalalalalalalalalalalalalalalalalalalalalalalalalalala",
    "one digit": "0000000000000000000000000000000000",
    "phrase loop": "The capital is. " + "I am a model and I am " * 12,
    "late loop": "Paris is the capital of France and it is a city. " + "of the of the of the of the " * 6,
    "words in circles": " ".join(["alpha beta gamma delta"] * 14),
    "replacement": "\ufffd\ufffd\ufffd Par\ufffd\ufffd is \ufffd\ufffd",
    "private use": "\ue000\ue001\ue002\ue010 text \ue003\ue004",
    "script soup": "значит का 中文 ที่ das και هذا ein это है 的 คือ της على mit",
    "wrong script": "这是一个关于各种不同事情的长答案，没有任何意义",
    "wrong script cyrillic": "Столица этой страны находится далеко отсюда",
    "punctuation": "),(;:]}{[)(*&^%$#@),(;:]}{[)(*&^%$#@),(;:",
    "empty": "",
    "blank": " \n\t  ",
    "rulers only": "------------------------",
    "nul": "\x00\x00\x00\x00\x00\x00\x00\x00",
    "one word nearly": "Paris " + "ok fine ok ok ok ok well ok ok ok ok sure ok ok ok ok yes ok ok ok ok",
}


@pytest.mark.parametrize("text", GARBAGE.values(), ids=GARBAGE)
def test_garbage_is_called_so(text: str) -> None:
    assert sense(text, CAPITAL)


HONEST = {
    "short": ("Paris", CAPITAL, "Paris"),
    "short with stop": ("Paris.", CAPITAL, "paris"),
    "number": ("51", "What is 17 times 3?", "51"),
    "big number": ("1000000", "How much is a thousand times a thousand?", "1000000"),
    "yes": ("Yes", "Is water wet?", None),
    "enthusiasm": ("Paris!!!", CAPITAL, "Paris"),
    "laughter": ("Ha ha ha! That is a good one.", "Tell me a joke.", None),
    "markdown": ("**Paris**\n\n---\n\nIt has been the capital since 987.", CAPITAL, "Paris"),
    "table": ("| a | b |\n|-----------------|-----------------|\n| 1 | 2 |", "Make a table of a and b.", None),
    "setext": ("Answer\n" + "=" * 40 + "\n\nParis is the capital.", CAPITAL, "Paris"),
    "code": (
        "def add(a, b):\n    return a + b\n\n\nfor i in range(10):\n    print(add(i, i))\n",
        "Write a function that adds.",
        "def",
    ),
    "json": ('{"a": [1, 2, 3], "b": {"c": null}, "d": [[], [], {}]}', "Answer with JSON.", None),
    "count": ("1, 2, 3, 4, 5, 6, 7, 8, 9, 10", "Count to ten.", "10"),
    "cjk asked in cjk": ("法国的首都是巴黎，它位于塞纳河畔。", "法国的首都是哪里？", "巴黎"),
    "cjk asked in words": ("フランスの首都はパリです。", "Translate to Japanese: Paris is the capital.", None),
    "japanese": ("フランスの首都はパリです。美しい街です。", "フランスの首都はどこですか？", "パリ"),
    "korean with hanja": ("대한민국(大韓民國)의 수도는 서울입니다.", "대한민국의 수도는?", "서울"),
    "greek letters": ("The area is πr², with π ≈ 3.14159.", "Area of a circle?", "π"),
    "accents": ("Málaga, Zürich, Łódź, Reykjavík", "Name four towns.", None),
    "cut character": ("Paris, 🇫🇷 the city of li\ufffd", CAPITAL, "Paris"),
    "emoji": ("Paris 🎉🎉🎉", CAPITAL, "Paris"),
    "thinking": (
        "The user asks for the capital of France, in one word. The capital of France is Paris. So I answer: Paris",
        CAPITAL,
        "Paris",
    ),
    "anaphora": (
        "I want to go. I want to see. I want to learn what the sea is like when nobody watches and the wind is calm.",
        "Write something poetic.",
        None,
    ),
    "full width": ("ＰＡＲＩＳ", CAPITAL, "Paris"),
}


@pytest.mark.parametrize(("text", "prompt", "expect"), HONEST.values(), ids=HONEST)
def test_an_honest_answer_is_left_alone(text: str, prompt: str, expect: str | None) -> None:
    assert sense(text, prompt, expect) is None


def test_the_expected_text_must_be_there() -> None:
    reason = sense("The capital of France is Lyon.", CAPITAL, "Paris")
    assert reason == "does not contain 'Paris'"


@given(st.text(max_size=300))
def test_any_text_gets_an_answer_and_what_is_shown_is_safe(text: str) -> None:
    sense(text, CAPITAL)
    line = shown(text)
    assert "\x1b" not in line
    assert "\n" not in line
    assert len(line) <= 130


@given(st.sampled_from("!?abcZ0€中я"), st.integers(min_value=32, max_value=200))
def test_one_character_is_never_an_answer(char: str, count: int) -> None:
    assert sense(char * count, CAPITAL)
