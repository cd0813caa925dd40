"""YAML -> model: the schema decides how text is read, no trap springs, and every problem is told at once where it is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, field_validator

from console.errors import InvalidFile, UsageError
from console.profile.yamlio import decode, load, nearest
from console.profile.yamltree import LIMIT


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")
    port: Annotated[int, Field(ge=1, le=65535)] = 1
    label: str = ""


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid")
    text: str = ""
    number: int = 0
    ratio: float = 0.0
    switch: bool = False
    maybe: str | None = None
    choice: Literal["auto", "bfloat16", "fp8"] = "auto"
    names: tuple[str, ...] = ()
    inner: Inner = Inner()
    many: list[Inner] = []
    by_name: dict[str, Inner] = {}
    generic: dict[str, bool | int | float | str | list[str] | dict[str, object]] = {}
    step: list[str | Inner] = []

    @field_validator("text")
    @classmethod
    def no_shouting(cls, value: str) -> str:
        if value.endswith("!"):
            raise ValueError("write it without exclamation mark")
        return value


def read(text: str | bytes) -> tuple[Outer | None, list[str]]:
    value, problems = decode(text, Outer, file="f.yaml")
    return value, [str(problem) for problem in problems]


def good(text: str) -> Outer:
    value, problems = read(text)
    assert not problems
    assert value is not None
    return value


def bad(text: str | bytes) -> list[str]:
    value, problems = read(text)
    assert value is None
    assert problems
    return problems


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("0123456", "0123456"), ("0.10", "0.10"), ("on", "on"), ("yes", "yes"), ("true", "true"), ("12:30", "12:30"),
        ("1_000", "1_000"), ("0x10", "0x10"), ("2026-01-01", "2026-01-01"), ("'null'", "null"), ("''", ""), ("'a: b'", "a: b"),
        ("é ü", "é ü"), ("'line' # comment", "line"), ("1e3", "1e3"), ("'!important'", "!important"),
    ],
)  # fmt: skip
def test_text_stays_as_written(written: str, expected: str) -> None:
    assert good(f"text: {written}").text == expected


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("number: 1_000", "write 1000, without underscores"),
        ("number: 08", "without a leading zero (8?), not 08"),
        ("number: 0123", "without a leading zero (123?), not 0123"),
        ("number: 0x1F", "write the number in decimal, not 0x1F"),
        ("number: 0o17", "write the number in decimal, not 0o17"),
        ("number: 12:30:45", "not the time 12:30:45"),
        ("number: +5", "write 5, without the sign"),
        ("number: 8.0", "a whole number is expected, not 8.0"),
        ('number: "8000"', "write 8000 without quotes"),
        ("number: true", "a whole number is expected, not true"),
        ("number:", "a whole number is expected, not nothing"),
        ("number: 99999999999999999999999", "too large"),
        ("ratio: .5", "write 0.5"),
        ("ratio: .inf", "a finite number is expected"),
        ("ratio: nan", "a finite number is expected"),
        ("ratio: 1_0.5", "write 10.5, without underscores"),
        ("ratio: 01.5", "without a leading zero"),
        ("ratio: abc", "a number is expected, not abc"),
        ("switch: on", "write true or false, not on"),
        ("switch: yes", "write true or false, not yes"),
        ("switch: True", "write true or false, not True"),
        ("switch: 1", "write true or false, not 1"),
        ('switch: "true"', "write true without quotes"),
        ("text: ~", "text is expected"),
        ("text:", "text is expected"),
        ("text: null", "text is expected"),
        ("text: [a]", "text is expected, not a list"),
        ("text: {a: b}", "text is expected, not keys and values"),
        ("names: a", "a list is expected, not a"),
        ("inner: 5", "a group of keys is expected, not 5"),
        ("inner: []", "a group of keys is expected, not a list"),
        ("choice: bf16", "one of auto, bfloat16, fp8 is expected, not bf16"),
        ("choice: bfloat", "did you mean bfloat16?"),
        ("inner: {port: 0}", "inner.port: must be at least 1, is 0"),
        ("many: [{port: 1}, {port: 70000}]", "many[1].port: must be at most 65535, is 70000"),
        ("by_name: {a: {prot: 1}}", "by_name.a.prot: unknown key; did you mean port?"),
        ("text: no!", "write it without exclamation mark"),
        ("port: 80", "port: unknown key here; it belongs in inner or many"),
        ("zzz: 1", "zzz: unknown key; known here: text, number"),
        ("Number: 1", "unknown key; did you mean number?"),
        ("generic: {a: on}", 'write true or false, or "on" in quotes'),
        ("generic: {a: No}", 'write true or false, or "No" in quotes'),
        ("generic: {a: }", "a value is expected"),
        ("generic: {a: {b: {c: yes}}}", "generic.a.b.c: write true or false"),
        ("text: a\ntext: b", "2:1: text: stands twice; the first is on line 1"),
        ("inner: {port: 1, port: 2}", "inner.port: stands twice"),
        ("text: &a x", "the anchor &a is not allowed"),
        ("names: [&a x, *a]", "the alias *a is not allowed"),
        ("inner:\n  <<: {port: 1}", "merge keys (<<) are not allowed"),
        ("text: !!str 5", "the tag !!str is not allowed"),
        ("text: !!python/object/apply:os.system [x]", "is not allowed"),
        ("? [a]\n: 1", "a key must be text"),
        ("'': 1", "an empty key"),
        ("text: a\n---\ntext: b", "a second document begins here"),
        ("inner:\n\tport: 1", "2:1: yaml: a tab as indentation; write spaces"),
        ("text: [a", "yaml"),
        ("text: 'a", "yaml"),
        ("text: a: b", "yaml"),
        ("", "the file is empty"),
        ("# only a comment\n", "the file is empty"),
        ("- a\n- b", "a group of keys is expected, not a list"),
        ("just text", "a group of keys is expected, not just text"),
        ("text: a\u2028b", "control character U+2028"),
        ("text: a\x07b", "1:8: yaml: control character U+0007"),
        ("step: [{prt: 1}]", "step[0].prt: unknown key; did you mean port?"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(line: str, says: str) -> None:
    assert any(says in problem for problem in bad(line)), bad(line)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (b"\xef\xbb\xbftext: a", "byte order mark"),
        (b"\xff\xfet\x00", "UTF-16"),
        (b"text: ok\ntext2: \xe9", "2:8: yaml: byte 0xe9 is no UTF-8"),
        (b"text: " + b"a" * LIMIT, "at most 1,048,576 are read"),
    ],
)
def test_bytes_that_are_no_text(source: bytes, says: str) -> None:
    assert any(says in problem for problem in bad(source))


def test_all_problems_come_at_once_in_the_order_of_the_file() -> None:
    problems = bad(
        "text: ~\nnumber: 1_0\nswitch: on\ninner:\n  port: 0\n  labl: x\nunknown: 1\nmany:\n- {port: 0}\n- 5\n- {port: 99999}\n"
    )
    assert [problem.split(": ")[1] for problem in problems] == [
        "text", "number", "switch", "inner.port", "inner.labl", "unknown", "many[0].port", "many[1]", "many[2].port",
    ]  # fmt: skip
    assert problems[4].startswith("f.yaml:6:3: inner.labl: unknown key; did you mean label?")


def test_one_mistake_is_told_once() -> None:
    class Strict(BaseModel):
        model_config = ConfigDict(extra="forbid")
        revision: str

    _, problems = decode("revison: abc", Strict, file="f")
    assert [problem.message for problem in problems] == ["unknown key; did you mean revision?"]
    _, problems = decode("revision: ~", Strict, file="f")
    assert len(problems) == 1
    _, problems = decode("{}", Strict, file="f")
    assert [str(problem) for problem in problems] == ["f:1:1: revision: is required"]


def test_generic_values_are_typed_sensibly() -> None:
    value = good(
        'generic: {a: true, b: 12, c: 0.93, d: kimi_k2, e: "12", f: 0123, g: 1_0, h: [a, "1"], i: {x: 1, y: [true, "on"], z: ~}}'
    )
    assert value.generic == {
        "a": True, "b": 12, "c": 0.93, "d": "kimi_k2", "e": "12", "f": "0123", "g": "1_0", "h": ["a", "1"],
        "i": {"x": 1, "y": [True, "on"], "z": None},
    }  # fmt: skip
    assert [type(v) for v in value.generic.values()] == [bool, int, float, str, str, str, str, list, dict]


def test_absent_optional_and_union_items() -> None:
    value = good("maybe: ~\nstep: [inspect, {port: 3}]\nmany: []")
    assert value.maybe is None
    assert value.step == ["inspect", Inner(port=3)]


def test_lists_at_the_top() -> None:
    value, problems = decode("- {port: 1}\n- {port: 2}\n", list[Inner], file="f")
    assert not problems
    assert value == [Inner(port=1), Inner(port=2)]


def test_rules_see_what_could_be_read() -> None:
    def rules(data: object) -> list[tuple[tuple[str | int, ...], str]]:
        assert isinstance(data, dict)
        return [(("inner", "port"), f"rule saw {sorted(data)}")]

    _, problems = decode("number: x\ninner: {port: 5}\n", Outer, file="f", rules=rules)
    assert [str(problem) for problem in problems] == [
        "f:1:9: number: a whole number is expected, not x",
        "f:2:15: inner.port: rule saw ['inner']",
    ]


def test_deep_nesting_and_alias_bombs_end_quickly() -> None:
    assert any("nested deeper" in problem for problem in bad("generic: " + "[" * 100 + "]" * 100))
    assert bad("generic: " + "[" * 50_000 + "]" * 50_000)
    assert bad("- " * 50_000)
    bomb = "a: &a [x]\n" + "".join(f"b{n}: &b{n} [*a, *a]\n" for n in range(50))
    assert sum("is not allowed" in problem for problem in bad(bomb)) >= 100


def test_files(tmp_path: Path) -> None:
    folder = tmp_path
    (folder / "a.yaml").write_text("number: x\n")
    with pytest.raises(InvalidFile, match=r"a\.yaml:1:9: number: a whole number"):
        load(folder / "a.yaml", Outer)
    with pytest.raises(UsageError, match="there is no file"):
        load(folder / "b.yaml", Outer)
    with pytest.raises(UsageError, match="cannot be read"):
        load(folder, Outer)


def test_nearest() -> None:
    assert nearest("max_model_len", ["max-model-len", "max-num-seqs"]) == "max-model-len"
    assert nearest("revison", ["revision", "repo"]) == "revision"
    assert nearest("zzz", ["revision", "repo"]) is None


@given(st.text(max_size=200))
def test_any_text_gives_a_value_or_problems(text: str) -> None:
    value, problems = decode(text, Outer, file="f")
    assert (value is None) == bool(problems)


@given(st.binary(max_size=100))
def test_any_bytes_give_a_value_or_problems(data: bytes) -> None:
    value, problems = decode(data, Outer, file="f")
    assert (value is None) == bool(problems)


@given(
    st.text(alphabet=st.characters(blacklist_categories=("Cs", "Cc"), blacklist_characters="\u2028\u2029"), max_size=60)
)
def test_quoted_text_survives(text: str) -> None:
    quoted = "".join(char if char.isalnum() and char.isascii() else f"\\U{ord(char):08x}" for char in text)
    value, problems = decode(f'maybe: "{quoted}"', Outer, file="f")
    assert not problems
    assert value is not None
    assert value.maybe == text
