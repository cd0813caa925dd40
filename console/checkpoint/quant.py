"""Byte-exact edits of the KV-cache scheme in a model's JSON files.

Pure: bytes in, edits out. The value's span becomes `null` (or an FP8 scheme); the key is never deleted, since vLLM
demands the key of nested NVFP4 configs (DOMAIN A.2), and no other byte moves: indent, order, line ends, escapes, a byte
order mark, duplicate keys and the final newline stay. Values that are not looked into are skipped by the very parser
that vLLM reads the file with, so what it accepts is accepted here.

A scheme can stand in a *container*: `quantization_config` or `compression_config` of the model config or of a part of
it (`text_config`, …), the `quantization` object in one, and the root of `hf_quant_config.json`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from console.errors import DownloadFailed

KV_KEYS = ("kv_cache_scheme", "kv_cache_quant_algo")
CONTAINERS = ("quantization_config", "compression_config")
# what a container holds beside KV fields; a key of the same name in here is not vLLM's KV field (DOMAIN A.2)
UNTOUCHED = frozenset({"config_groups", "ignore", "exclude_modules", "quantized_layers", "producer"})
KNOWN_ALGORITHMS = frozenset({"FP8", "INT8", "NVFP4", "NVFP4_AFFINE"})
"""The KV algorithms that ModelOpt writes (DOMAIN A.4)."""

Form = Literal["fp8", "quantized", "none", "unknown"]
Target = Literal["bfloat16", "fp8"]


class InvalidConfig(DownloadFailed):
    """A model's JSON file cannot be read: what is in its place, and where it breaks."""


@dataclass(frozen=True, slots=True)
class KvField:
    """One place where a KV scheme stands. `start` and `end` are byte offsets of the value alone."""

    path: str
    key: str
    value: Any
    form: Form
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Document:
    """A JSON file with its KV fields. `data` is what Python's own parser makes of it."""

    name: str
    raw: bytes
    data: dict[str, Any]
    fields: tuple[KvField, ...]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Edited:
    """`raw` after the edit, the fields whose value was replaced, and what was left with the reason."""

    raw: bytes
    changed: tuple[KvField, ...]
    warnings: tuple[str, ...]


_SPACE = re.compile(r"[ \t\n\r]*")
_DECODER = json.JSONDecoder()


def scheme_form(value: Any) -> Form:
    """What a KV value says: `fp8`, another known quantization, `none`, or something nobody here knows."""
    if value is None:
        return "none"
    if isinstance(value, str):
        name = value.strip().upper()
        return "fp8" if name == "FP8" else "quantized" if name in KNOWN_ALGORITHMS else "unknown"
    if isinstance(value, dict) and "quant_method" not in value and value.get("type") in ("float", "int"):
        bits = value.get("num_bits")
        if bits == 8 and value["type"] == "float" and value.get("dynamic", False) is False:
            return "fp8"
        return "quantized" if bits in (4, 8) else "unknown"
    return "unknown"


def read_document(name: str, raw: bytes) -> Document:
    """The document in `raw`; raises `InvalidConfig` for a pointer, a page, bad UTF-8, broken or foreign JSON."""
    text = _decoded(name, raw)
    warnings = []
    start = 0
    if text.startswith("\ufeff"):
        start = 1
        warnings.append(f"{name} begins with a byte order mark, which Python's JSON reader refuses")
    try:
        data = json.loads(text[start:])
    except ValueError as error:
        raise _broken(name, text, error) from error
    except RecursionError as error:
        raise InvalidConfig(f"{name} is nested too deeply to be a model config", "Fetch the file again.") from error
    if not isinstance(data, dict):
        raise InvalidConfig(f"{name} holds a JSON {type(data).__name__}, not an object", "Fetch the file again.")
    root = name.rsplit("/", 1)[-1] != "config.json"
    found = tuple(_fields(text, start, "", root))
    warnings += [
        f"{name}: {field.path} holds an unknown scheme ({_short(field.value)}); left as it is"
        for field in found
        if field.form == "unknown"
    ]
    warnings += [
        f"{name}: {key} stands outside of a quantization config, where vLLM does not look; left as it is"
        for key in KV_KEYS
        if not root and data.get(key) is not None
    ]
    return Document(name, raw, data, _in_bytes(text, found), tuple(warnings))


def edit(document: Document, target: Target) -> Edited:
    """The document with every known KV scheme set to `target`; unknown ones are reported and left.

    `bfloat16` makes each quantized value null. `fp8` makes each null value an FP8 scheme where the key stands; a key
    is never added. Idempotent: a second edit changes nothing.
    """
    wanted = [field for field in document.fields if _differs(field, target)]
    raw = document.raw
    for field in sorted(wanted, key=lambda field: field.start, reverse=True):
        raw = raw[: field.start] + _value(field, target) + raw[field.end :]
    return Edited(raw, tuple(wanted), document.warnings)


def _differs(field: KvField, target: Target) -> bool:
    return field.form in ("fp8", "quantized") if target == "bfloat16" else field.form in ("none", "quantized")


def _value(field: KvField, target: Target) -> bytes:
    if target == "bfloat16":
        return b"null"
    return b'"FP8"' if field.key == "kv_cache_quant_algo" else b'{"dynamic": false, "num_bits": 8, "type": "float"}'


def _fields(text: str, at: int, path: str, container: bool) -> Iterator[KvField]:
    """KV fields of the object that begins at `at`, offsets in characters. `container`: a scheme may stand right here."""
    for key, start, end in _members(text, at):
        here = f"{path}.{key}" if path else key
        opens_object = text[start] == "{"
        if container and key in KV_KEYS:
            value = _DECODER.raw_decode(text, start)[0]
            yield KvField(here, key, value, scheme_form(value), start, end)
        elif not opens_object or key in UNTOUCHED:
            continue
        elif key in CONTAINERS or key == "quantization":
            yield from _fields(text, start, here, True)
        elif not container:
            yield from _fields(text, start, here, False)


def _members(text: str, at: int) -> Iterator[tuple[str, int, int]]:
    """Key and span of each member value of the object at `at`; the text is known to be valid JSON."""
    at = _skip(text, _skip(text, at) + 1)
    while text[at] != "}":
        key, end = _DECODER.raw_decode(text, at)
        start = _skip(text, _skip(text, end) + 1)
        end = _DECODER.raw_decode(text, start)[1]
        yield key, start, end
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _in_bytes(text: str, fields: tuple[KvField, ...]) -> tuple[KvField, ...]:
    """The same fields with byte offsets; characters outside ASCII take more than one byte."""
    if text.isascii():
        return fields
    moved = []
    for field in fields:
        start = len(text[: field.start].encode())
        end = start + len(text[field.start : field.end].encode())
        moved.append(KvField(field.path, field.key, field.value, field.form, start, end))
    return tuple(moved)


def _decoded(name: str, raw: bytes) -> str:
    head = raw[:512].lstrip()
    if raw.startswith(b"version https://git-lfs.github.com/spec/"):
        raise InvalidConfig(
            f"{name} is a git-lfs pointer, not the file itself", "Run `git lfs pull`, or download the model again."
        )
    if head[:1] == b"<":
        raise InvalidConfig(
            f"{name} is an HTML or XML page, not JSON; a proxy or a login page answered instead of the hub",
            "Check HF_ENDPOINT and the proxy, then download the file again.",
        )
    if not head:
        raise InvalidConfig(f"{name} is empty", "Download the file again.")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise InvalidConfig(
            f"{name} is not UTF-8: byte {error.start} is 0x{raw[error.start]:02x}", "Download the file again."
        ) from error


def _broken(name: str, text: str, error: ValueError) -> InvalidConfig:
    if isinstance(error, json.JSONDecodeError):
        place = f"line {error.lineno}, column {error.colno}: {error.msg}"
        cut = error.pos >= len(text.rstrip()) - 1 or "Unterminated" in error.msg
    else:
        place, cut = str(error), False
    if cut:
        return InvalidConfig(f"{name} is cut off at {place}", "The download is incomplete; fetch the file again.")
    return InvalidConfig(f"{name} is not valid JSON at {place}", "Fetch the file again, or undo the last edit by hand.")


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "…"
