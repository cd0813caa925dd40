"""Byte-exact edits of KV schemes: own small fixtures, properties over made-up JSON, and the published configs."""

from __future__ import annotations

import copy
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from console.checkpoint.quant import InvalidConfig, edit, read_document, scheme_form

CASES = Path("/work/shared/cases/configs")
FP8 = {"dynamic": False, "num_bits": 8, "type": "float"}


def patched(text: str, name: str = "config.json", target: Any = "bfloat16") -> tuple[str, list[str]]:
    done = edit(read_document(name, text.encode()), target)
    return done.raw.decode(), [field.path for field in done.changed]


@pytest.mark.parametrize(
    ("name", "before", "after", "paths"),
    [
        (
            "config.json",
            '{"quantization_config": {"kv_cache_scheme": {"type": "float", "num_bits": 8}, "quant_algo": "NVFP4"}}',
            '{"quantization_config": {"kv_cache_scheme": null, "quant_algo": "NVFP4"}}',
            ["quantization_config.kv_cache_scheme"],
        ),
        (
            "config.json",
            '{"text_config":{"quantization_config":{"quantization":{"kv_cache_quant_algo":"fp8"}}}}\n',
            '{"text_config":{"quantization_config":{"quantization":{"kv_cache_quant_algo":null}}}}\n',
            ["text_config.quantization_config.quantization.kv_cache_quant_algo"],
        ),
        ("config.json", '{"compression_config": {"kv_cache_scheme": "FP8"}}', '{"compression_config": {"kv_cache_scheme": null}}', ["compression_config.kv_cache_scheme"]),
        ("hf_quant_config.json", '{"quantization": {"kv_cache_quant_algo": "NVFP4"}}', '{"quantization": {"kv_cache_quant_algo": null}}', ["quantization.kv_cache_quant_algo"]),
        ("hf_quant_config.json", '{"quant_algo": "FP8",\r\n  "kv_cache_quant_algo" :\t"FP8"\r\n}\r\n', '{"quant_algo": "FP8",\r\n  "kv_cache_quant_algo" :\tnull\r\n}\r\n', ["kv_cache_quant_algo"]),
        ("config.json", '\ufeff{"é": "\\u00e9", "quantization_config": {"kv_cache_scheme": "FP8"}}', '\ufeff{"é": "\\u00e9", "quantization_config": {"kv_cache_scheme": null}}', ["quantization_config.kv_cache_scheme"]),
        (
            "config.json",
            '{"quantization_config": {"kv_cache_scheme": "FP8", "kv_cache_scheme": "FP8"}}',
            '{"quantization_config": {"kv_cache_scheme": null, "kv_cache_scheme": null}}',
            ["quantization_config.kv_cache_scheme"] * 2,
        ),
        ("config.json", '{"quantization_config": {"kv_cache_\\u0073cheme": "FP8"}}', '{"quantization_config": {"kv_cache_\\u0073cheme": null}}', ["quantization_config.kv_cache_scheme"]),
    ],
)  # fmt: skip
def test_every_place_becomes_null_and_nothing_else_moves(name: str, before: str, after: str, paths: list[str]) -> None:
    assert patched(before, name) == (after, paths)
    assert patched(after, name) == (after, [])


@pytest.mark.parametrize(
    "text",
    [
        '{"quantization_config": {"kv_cache_scheme": null, "quant_method": "modelopt"}}',
        '{"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}',
        '{"_comment": "kv_cache_scheme is \\"FP8\\" here", "x": {"kv_cache_scheme": "FP8"}}',
        '{"quantization_config": {"config_groups": {"g": {"kv_cache_scheme": {"num_bits": 8, "type": "float"}}}}}',
        '{"quantization_config": {"quantized_layers": {"kv_cache_quant_algo": "FP8"}}}',
        '{"a": [NaN, Infinity, 1e400], "torch_dtype": "bfloat16"}',
    ],
)
def test_what_is_no_kv_scheme_is_left(text: str) -> None:
    assert patched(text) == (text, [])


def test_an_unknown_scheme_is_reported_and_left() -> None:
    text = '{"quantization_config": {"kv_cache_scheme": {"quant_method": "higgs_dense_2bit", "num_bits": 2}}}'
    document = read_document("config.json", text.encode())
    done = edit(document, "bfloat16")
    assert done.raw == text.encode()
    assert "unknown scheme" in done.warnings[0]
    assert "higgs_dense_2bit" in done.warnings[0]


def test_fp8_goes_back_into_a_null_field_and_never_adds_a_key() -> None:
    before = '{"quantization": {"kv_cache_quant_algo": null, "quant_algo": "NVFP4"}}'
    assert patched(before, "hf_quant_config.json", "fp8")[0] == before.replace("null", '"FP8"')
    flat = '{"quantization_config": {"kv_cache_scheme": null}}'
    done, _ = patched(flat, target="fp8")
    assert json.loads(done)["quantization_config"]["kv_cache_scheme"] == FP8
    assert patched(done, target="fp8") == (done, [])
    bare = '{"quantization_config": {"quant_method": "modelopt"}}'
    assert patched(bare, target="fp8") == (bare, [])


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b'{"a": {"b": 1', "cut off"),
        (b'{"a": "unfini', "cut off"),
        (b'{"a": 1,, "b": 2}', "not valid JSON at line 1, column 9"),
        (b"", "is empty"),
        (b"[1, 2]", "holds a JSON list"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n", "git-lfs pointer"),
        (b"<!DOCTYPE html><html><body>502</body></html>", "HTML or XML page"),
        (b'{"a": "\xff"}', "not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_what_cannot_be_read_is_named(raw: bytes, words: str) -> None:
    with pytest.raises(InvalidConfig, match=r"config\.json") as caught:
        read_document("config.json", raw)
    assert words in caught.value.message
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("value", "form"),
    [
        (None, "none"),
        ("FP8", "fp8"),
        (" fp8 ", "fp8"),
        ("NVFP4", "quantized"),
        ("INT8", "quantized"),
        ("turbo", "unknown"),
        (FP8, "fp8"),
        ({"num_bits": 8, "type": "float", "dynamic": True}, "quantized"),
        ({"num_bits": 4, "type": "float"}, "quantized"),
        ({"num_bits": 3, "type": "float"}, "unknown"),
        (8, "unknown"),
    ],
)
def test_what_a_scheme_says(value: Any, form: str) -> None:
    assert scheme_form(value) == form


# ---------------------------------------------------------------------------------------------------------- properties

keys = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | keys,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)
schemes = st.sampled_from(
    ["FP8", "fp8", "NVFP4", FP8, {**FP8, "strategy": "tensor", "symmetric": True}, {"num_bits": 4, "type": "float"}]
)


@st.composite
def configs(draw: st.DrawFn) -> tuple[str, Any, list[tuple[str, ...]]]:
    """A config as text, as data, and where its KV fields are."""
    data = draw(st.dictionaries(keys, plain, max_size=4))
    where = []
    for part in draw(st.sets(st.sampled_from(["", "text_config", "llm_config"]), min_size=1)):
        owner = data.setdefault(part, {}) if part else data
        if not isinstance(owner, dict):
            continue
        name = draw(st.sampled_from(["quantization_config", "compression_config"]))
        box = owner[name] = draw(st.dictionaries(keys, plain, max_size=3))
        path: tuple[str, ...] = (*((part,) if part else ()), name)
        if draw(st.booleans()):
            box["quantization"] = box = draw(st.dictionaries(keys, plain, max_size=3))
            path = (*path, "quantization")
        key = draw(st.sampled_from(["kv_cache_scheme", "kv_cache_quant_algo"]))
        box[key] = draw(schemes)
        where.append((*path, key))
    text = json.dumps(
        data,
        indent=draw(st.sampled_from([None, 1, 2, 4, "\t"])),
        ensure_ascii=draw(st.booleans()),
        separators=draw(st.sampled_from([None, (",", ":"), (" , ", " :  ")])),
    )
    if draw(st.booleans()):
        text = text.replace("\n", "\r\n")
    return text + draw(st.sampled_from(["", "\n", "\r\n"])), data, where


@given(configs())
def test_only_the_named_values_change(case: tuple[str, Any, list[tuple[str, ...]]]) -> None:
    text, data, where = case
    document = read_document("config.json", text.encode())
    done = edit(document, "bfloat16")
    expected = copy.deepcopy(data)
    for path in where:
        owner = expected
        for part in path[:-1]:
            owner = owner[part]
        owner[path[-1]] = None
    assert json.loads(done.raw) == expected
    rest = document.raw
    for field in sorted(done.changed, key=lambda field: -field.start):
        assert json.loads(document.raw[field.start : field.end]) == field.value
        rest = rest[: field.start] + b"null" + rest[field.end :]
    assert rest == done.raw
    again = edit(read_document("config.json", done.raw), "bfloat16")
    assert (again.raw, again.changed) == (done.raw, ())


@given(st.dictionaries(keys, plain, max_size=5))
def test_a_file_without_a_scheme_keeps_every_byte(data: dict[str, Any]) -> None:
    raw = json.dumps(data).encode()
    assert edit(read_document("config.json", raw), "bfloat16").raw == raw


# --------------------------------------------------------------------------------------------------- published configs


def published() -> list[tuple[Path, str]]:
    return [
        (case, name)
        for case in sorted(CASES.glob("*/"))
        for name in yaml.safe_load((case / "expect.yaml").read_text())["files"]
    ]


@pytest.mark.skipif(not CASES.is_dir(), reason="the shared cases are not here")
@pytest.mark.parametrize(
    ("case", "name"), published() if CASES.is_dir() else [], ids=lambda value: getattr(value, "name", value)
)
def test_published_configs(case: Path, name: str) -> None:
    expect = yaml.safe_load((case / "expect.yaml").read_text())["files"][name]
    raw = (case / name).read_bytes()
    done = edit(read_document(name, raw), "bfloat16")
    if expect["expect"] == "byte_identical":
        assert done.raw == raw
    else:
        assert hashlib.sha256(done.raw).hexdigest() == expect["expected_sha256"]
        assert done.raw == (case / expect["expected_file"]).read_bytes()
        assert [field.path for field in done.changed] == [field["path"] for field in expect["fields_to_neutralise"]]
    assert edit(read_document(name, done.raw), "bfloat16").changed == ()
