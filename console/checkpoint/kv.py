"""The KV decision: what to do about a checkpoint's KV-cache scheme before the engine is started.

A pure function of the model card, the GPU's compute capability, the vLLM version or the KV dtypes probed from its
installed backend, and the operator's policy. The rules are data (`profiles/kv_rules.yaml`), each with its source and
version window; rules of the user are looked at first.
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml

from console.checkpoint.card import KvReading, ModelCard, effective_kv
from console.checkpoint.kvsize import kv_cost
from console.checkpoint.version import Version, parse_version, within
from console.errors import UsageError
from console.profile.model import FlagValue

Action = Literal["none", "flag", "patch", "refuse"]
Policy = Literal["auto", "bfloat16", "fp8"]

_CONDITIONS = {"attention", "capability", "vllm", "reads", "policy", "method", "fp8_backend", "sparse"}
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_RULE_KEYS = {"id", "when", "then", "reason", "remedy", "alternatives", "source"}
_WORDS = ("cc", "vllm", "model_dtype", "why", "backends")
"""What a rule's reason may name in braces."""
USER_RULES = "kv_rules.yaml"
"""Name of the operator's own rules in Relaunch's folder of settings."""


@dataclass(frozen=True, slots=True)
class KvDecision:
    """What to do, why, and what it costs. `dtype`: the KV dtype that will be used, `auto` for the model's own.

    `flags` are serve flags without dashes. `bytes_per_token` is per GPU, None when the attention is not understood.
    `forbids_patch`: a patch would break what works.
    """

    action: Action
    dtype: str
    reason: str
    rule: str
    flags: Mapping[str, FlagValue] = field(default_factory=dict)
    alternatives: tuple[str, ...] = ()
    bytes_per_token: int | None = None
    cost: str = ""
    remedy: str = ""
    source: str = ""
    forbids_patch: bool = False
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KvRules:
    """Backends and decision rules as loaded; immutable by convention."""

    backends: tuple[Mapping[str, Any], ...]
    rules: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class _Situation:
    attention: str
    capability: tuple[int, int]
    version: Version
    reading: KvReading
    policy: Policy
    method: str | None
    backends: Mapping[str, tuple[str, ...]]

    @property
    def reads(self) -> str:
        return self.reading.dtype or "none"

    @property
    def fp8_backend(self) -> bool:
        """Whether any backend takes FP8 KV; attention without MLA runs on backends that all do (DOMAIN B.1)."""
        if self.attention not in ("dense-mla", "hybrid-mla", "sparse-mla"):
            return True
        return any(dtype.startswith("fp8") for dtypes in self.backends.values() for dtype in dtypes)

    @property
    def sparse(self) -> str:
        dtypes = {dtype for backend in self.backends.values() for dtype in backend}
        return "none" if not dtypes else "any" if "bfloat16" in dtypes else "fp8-only"


def decide(
    card: ModelCard,
    capability: tuple[int, int],
    vllm_version: str,
    backend_dtypes: tuple[str, ...] | None,
    policy: Policy,
    *,
    tensor_parallel: int = 8,
    context_parallel: int = 1,
    rules: KvRules | None = None,
) -> KvDecision:
    """The KV decision. `capability` is the GPU's (major, minor). `backend_dtypes`: what the installed TRITON_MLA says it
    supports; None when it was not asked, and the version table counts."""
    rules = rules or load_rules()
    version = parse_version(vllm_version)
    attention = "hybrid-mla" if card.attention == "hybrid" and card.mla else card.attention
    backends = _backends(rules, attention, capability, version, backend_dtypes)
    reading = effective_kv(card, version.minor)
    situation = _Situation(attention, capability, version, reading, policy, card.method, backends)
    rule = next((rule for rule in rules.rules if _fits(rule["when"], situation)), None)
    if rule is None:
        raise UsageError("no KV rule fits this model", "Add a rule without conditions at the end of the KV rules.")
    return _decision(rule, situation, card, tensor_parallel, context_parallel)


def load_rules(extra: Path | None = None) -> KvRules:
    """The shipped rules, with those of `extra` before them. Raises `UsageError` for a rule that cannot be used."""
    shipped = _shipped()
    if extra is None:
        return shipped
    try:
        own = _parse(str(extra), extra.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{extra} cannot be read: {error}", "Write it like profiles/kv_rules.yaml.") from error
    return KvRules(own.backends + shipped.backends, own.rules + shipped.rules)


def user_rules(folder: Path) -> KvRules:
    """The shipped rules with the operator's own before them, when `folder` ($XDG_CONFIG_HOME/relaunch) holds some."""
    extra = folder / USER_RULES
    return load_rules(extra if extra.exists() else None)


@cache
def _shipped() -> KvRules:
    text = importlib.resources.files("profiles").joinpath("kv_rules.yaml").read_text(encoding="utf-8")
    return _parse("profiles/kv_rules.yaml", text)


def _parse(name: str, text: str) -> KvRules:
    try:
        data = yaml.load(text, Loader=_LOADER) or {}  # noqa: S506 -- a safe loader
    except yaml.YAMLError as error:
        raise UsageError(f"{name}: {error}", "Write it like profiles/kv_rules.yaml.") from error
    if not isinstance(data, dict) or data.keys() - {"rules", "backends"}:
        raise UsageError(f"{name}: only `rules` and `backends` can stand here", "Write it like profiles/kv_rules.yaml.")
    rules, backends = data.get("rules") or [], data.get("backends") or []
    if not isinstance(rules, list) or not isinstance(backends, list):
        raise UsageError(f"{name}: rules must be a list, and so must backends", "Write it like profiles/kv_rules.yaml.")
    for number, rule in enumerate(rules, 1):
        _check_rule(f"{name}: rule {number}", rule)
    for number, backend in enumerate(backends, 1):
        _check_backend(f"{name}: backend {number}", backend)
    return KvRules(tuple(backends), tuple(rules))


def _check_rule(where: str, rule: Any) -> None:
    if not isinstance(rule, dict) or not {"id", "when", "then", "reason"} <= rule.keys():
        raise UsageError(f"{where} needs id, when, then and reason", "Write it like profiles/kv_rules.yaml.")
    where = f"{where} ({rule['id']})"
    if not isinstance(rule["when"], dict) or not isinstance(rule["then"], dict):
        raise UsageError(f"{where}: when and then must be mappings; `when: {{}}` fits always")
    unknown = (rule.keys() - _RULE_KEYS) | (rule["when"].keys() - _CONDITIONS)
    if unknown:
        raise UsageError(f"{where}: unknown keys {', '.join(sorted(map(str, unknown)))}", "Remove or rename them.")
    if rule["then"].get("action") not in ("none", "flag", "patch", "refuse"):
        raise UsageError(f"{where}: action must be none, flag, patch or refuse", "Choose one of the four.")
    if not isinstance(rule["then"].get("dtype"), str):
        raise UsageError(f"{where}: then needs a dtype", "auto, bfloat16 or fp8.")
    try:
        str(rule["reason"]).format_map(dict.fromkeys(_WORDS, ""))
        within(parse_version("0"), tuple(rule["when"].get("vllm", ())))
    except (KeyError, IndexError, ValueError, AttributeError) as error:
        raise UsageError(f"{where}: the reason names {error}", f"It may name {', '.join(_WORDS)}.") from error


def _check_backend(where: str, backend: Any) -> None:
    if not isinstance(backend, dict) or not {"name", "attention", "capability", "windows"} <= backend.keys():
        raise UsageError(
            f"{where} needs name, attention, capability and windows", "Write it like profiles/kv_rules.yaml."
        )
    windows = backend["windows"]
    if not isinstance(windows, list) or not all(
        isinstance(row, dict) and {"vllm", "kv"} <= row.keys() for row in windows
    ):
        raise UsageError(f"{where} ({backend['name']}): each window needs vllm and kv")


def _backends(
    rules: KvRules, attention: str, capability: tuple[int, int], version: Version, probed: tuple[str, ...] | None
) -> dict[str, tuple[str, ...]]:
    """The KV dtypes of each backend that can serve this attention on this GPU. A probe beats the table."""
    kind = "dense-mla" if attention == "hybrid-mla" else attention
    found: dict[str, tuple[str, ...]] = {}
    for backend in rules.backends:
        if backend["attention"] != kind or not _capable(backend["capability"], capability) or backend["name"] in found:
            continue
        if backend["name"] == "TRITON_MLA" and probed is not None:
            found[backend["name"]] = probed
            continue
        window = next((window for window in backend["windows"] if within(version, tuple(window["vllm"]))), None)
        if window is not None:
            found[backend["name"]] = tuple(window["kv"])
    return found


def _capable(wanted: str, capability: tuple[int, int]) -> bool:
    if wanted == "any":
        return True
    major, _, minor = str(wanted).partition(".")
    return int(major) == capability[0] and minor in ("", "x", str(capability[1]))


def _fits(when: Mapping[str, Any], situation: _Situation) -> bool:
    for name, wanted in when.items():
        if name == "vllm":
            fits = within(situation.version, tuple(wanted))
        elif name == "capability":
            fits = _capable(wanted, situation.capability)
        elif name == "reads" and wanted == "quantized":
            fits = situation.reads != "none"
        else:
            mine = getattr(situation, name)
            fits = mine in wanted if isinstance(wanted, list) else mine == wanted
        if not fits:
            return False
    return True


def _decision(
    rule: Mapping[str, Any], situation: _Situation, card: ModelCard, tensor_parallel: int, context_parallel: int
) -> KvDecision:
    then = rule["then"]
    words = {
        "cc": f"{situation.capability[0]}.{situation.capability[1]}",
        "vllm": situation.version.text,
        "model_dtype": card.dtype or "dtype",
        "why": situation.reading.why,
        "backends": "; ".join(f"{name}: {', '.join(kv)}" for name, kv in situation.backends.items())
        or ("no MLA" if not card.mla else "no backend known"),
    }
    alternatives = tuple(
        str(option["text"])
        for option in rule.get("alternatives", ())
        if option.get("unless", {}).get("method", "") != (card.method or "-")
    )
    dtype = str(then["dtype"])
    if then["action"] == "none" and dtype == "fp8" and situation.reads == "none":
        dtype = "auto"
    used = (
        dtype
        if dtype != "auto"
        else ("fp8" if situation.sparse == "fp8-only" and card.attention == "sparse-mla" else dtype)
    )
    cost, sentence = _cost(card, used, tensor_parallel, context_parallel)
    return KvDecision(
        action=then["action"],
        dtype=dtype,
        reason=str(rule["reason"]).format_map(words).strip(),
        rule=str(rule["id"]),
        flags=dict(then.get("flags", {})),
        alternatives=alternatives,
        bytes_per_token=cost,
        cost=sentence,
        remedy=str(rule.get("remedy", "")),
        source=str(rule.get("source", "")),
        forbids_patch=bool(then.get("forbids_patch", False)),
        warnings=card.warnings,
    )


def _cost(card: ModelCard, dtype: str, tensor_parallel: int, context_parallel: int) -> tuple[int | None, str]:
    parallel = {"tensor_parallel": tensor_parallel, "context_parallel": context_parallel}
    mine = kv_cost(card, dtype, **parallel)
    if mine is None:
        return None, "what a token costs is unknown: the attention of this model is not understood"
    each = round(mine.per_token)
    sentence = f"a token costs {each:,} bytes of KV cache per GPU"
    other = kv_cost(card, "bfloat16" if dtype.startswith("fp8") else "fp8", **parallel)
    if other is not None and other.per_token:
        name = "bfloat16" if dtype.startswith("fp8") else "FP8"
        sentence += f"; {name} would cost {round(other.per_token):,}"
    if card.max_positions:
        whole = mine.per_token * card.max_positions + mine.per_request
        sentence += f"; one request of {card.max_positions:,} tokens needs {whole / 2**30:.1f} GiB"
    return each, sentence
