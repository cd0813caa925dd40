"""A known remedy as a changed profile: what `--fix` does after a failed start, once per remedy.

Pure. Triage names the remedy (`Diagnosis.fix`: a verb, or `verb:value`); only what can be said in the profile is done here,
anything else stays advice. The relaunch itself is the walk's business. A remedy that an earlier run told (`Remedy`) is done
again only where the lines that it moves still stand as they stood then.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from console.events import Remedy
from console.profile.model import FlagValue, Profile, Variable

READY_TIMEOUT = "3600"
"""Seconds for VLLM_ENGINE_READY_TIMEOUT_S: DOMAIN D13."""
STEP_DOWN = 0.02
LOWEST = 0.5
DEFAULT_UTILISATION = 0.9
"""vLLM's own default up to 0.18; 0.92 from 0.20 (DOMAIN E.2)."""


@dataclass(frozen=True, slots=True)
class ProfileEdit:
    """A remedy as it would be applied. `name` tells it from others, so that none is tried twice."""

    name: str
    profile: Profile
    text: str
    diff: str

    def event(self, time: float, *, applied: bool) -> Remedy:
        """The change, for whoever watches the run, and for the run that comes back to it."""
        return Remedy(time=time, step="launch", name=self.name, text=self.text, diff=self.diff, applied=applied)


def fix_for(profile: Profile, fix: str | None, *, patched: bool = False) -> ProfileEdit | None:
    """The edit that a diagnosis proposes by its `fix`, or None when it proposes none, or none that would change anything.

    `patched`: the unit already served an overlay without the FP8 field, so that only the flag can still help.
    """
    verb, _, value = (fix or "").partition(":")
    if verb == "kv-patch" and patched:
        verb = "kv-flag"
    match verb:
        case "kv-patch":
            changed, text = _kv(profile, patch=True)
        case "kv-flag":
            changed, text = _kv(profile, patch=False)
        case "drop-flag":
            changed, text = _drop_flag(profile, value)
        case "max-model-len":
            changed, text = _context(profile, value)
        case "gpu-memory-utilization":
            changed, text = _utilisation(profile, value)
        case "ready-timeout":
            changed, text = _ready_timeout(profile, value)
        case _:
            return None
    if changed == profile:
        return None
    name = f"{verb}:{value}" if value else verb
    return ProfileEdit(name, changed, text, _diff(profile, changed))


def edits_again(profile: Profile, remedies: Iterable[Remedy]) -> tuple[ProfileEdit, ...]:
    """Remedies of an earlier run as edits of `profile`, each upon the one before. What the profile says by now is left
    out; the first that finds other lines than it moved then ends the list: nobody has tried it upon these."""
    edits: list[ProfileEdit] = []
    for remedy in remedies:
        lines = set(_lines(profile))
        gone, come = _moved(remedy.diff)
        if come <= lines and not gone & lines:
            continue
        edit = fix_for(profile, remedy.name) if gone <= lines and not come & lines else None
        if edit is None or _moved(edit.diff) != (gone, come):
            break
        edits.append(edit)
        profile = edit.profile
    return tuple(edits)


def _moved(diff: str) -> tuple[set[str], set[str]]:
    """The lines that a diff takes away, and those that it brings."""
    body = [line for line in diff.splitlines() if not line.startswith(("---", "+++"))]
    return {line[1:] for line in body if line[:1] == "-"}, {line[1:] for line in body if line[:1] == "+"}


def _kv(profile: Profile, *, patch: bool) -> tuple[Profile, str]:
    """bf16 for the KV cache: as policy, so that the patch step decides between overlay and flag, or as flag alone."""
    flags = {name: item for name, item in profile.serve.flags.items() if name != "kv-cache-dtype"}
    if not patch:
        flags["kv-cache-dtype"] = "bfloat16"
    policy = profile.kv_cache.model_copy(update={"policy": "bfloat16"})
    changed = _with_flags(profile, flags).model_copy(update={"kv_cache": policy})
    return changed, "the KV cache in bfloat16, " + ("by the patch step's decision" if patch else "by --kv-cache-dtype")


def _drop_flag(profile: Profile, value: str) -> tuple[Profile, str]:
    name = value.lstrip("-").partition("=")[0].replace("_", "-")
    flags = {key: item for key, item in profile.serve.flags.items() if key.replace("_", "-") != name}
    return _with_flags(profile, flags), f"without --{name}, which this vLLM does not know"


def _context(profile: Profile, value: str) -> tuple[Profile, str]:
    digits = re.sub(r"[,_ ]", "", value)
    if not digits.isdigit() or int(digits) < 1:
        return profile, ""
    # a little below the estimate, on a whole block: the estimate itself has been seen to miss by one block
    length = int(digits) // 128 * 128 or int(digits)
    return _with_flag(profile, "max-model-len", length), f"--max-model-len {length}, which fits"


def _utilisation(profile: Profile, value: str) -> tuple[Profile, str]:
    now = profile.serve.flags.get("gpu-memory-utilization", DEFAULT_UTILISATION)
    current = float(now) if isinstance(now, int | float) and not isinstance(now, bool) else DEFAULT_UTILISATION
    if re.fullmatch(r"0?\.\d+", value):
        wanted = float(value)
    elif re.fullmatch(r"[+-]0?\.\d+", value):
        wanted = current + float(value)
    else:
        wanted = current + (STEP_DOWN if value in ("up", "raise", "+") else -STEP_DOWN)
    wanted = round(wanted, 3)
    if not LOWEST <= wanted <= 0.98:
        return profile, ""
    return _with_flag(
        profile, "gpu-memory-utilization", wanted
    ), f"--gpu-memory-utilization {wanted:g} instead of {current:g}"


def _ready_timeout(profile: Profile, value: str) -> tuple[Profile, str]:
    seconds = value if value.isdigit() else READY_TIMEOUT
    variable = Variable(value=seconds, source="relaunch --fix")
    environment = {**profile.environment, "VLLM_ENGINE_READY_TIMEOUT_S": variable}
    return profile.model_copy(update={"environment": environment}), f"VLLM_ENGINE_READY_TIMEOUT_S={seconds}"


def _with_flag(profile: Profile, name: str, value: FlagValue) -> Profile:
    kept = {key: item for key, item in profile.serve.flags.items() if key.replace("_", "-") != name}
    return _with_flags(profile, {**kept, name: value})


def _with_flags(profile: Profile, flags: Mapping[str, FlagValue]) -> Profile:
    return profile.model_copy(update={"serve": profile.serve.model_copy(update={"flags": dict(flags)})})


def _diff(before: Profile, after: Profile) -> str:
    return "\n".join(
        difflib.unified_diff(
            _lines(before), _lines(after), f"{before.name} (as written)", f"{before.name} (fixed)", "", "", 1
        )
    )


def _lines(profile: Profile) -> list[str]:
    """The parts that a fix can touch, one setting per line."""
    body: dict[str, Any] = {
        **{f"environment.{name}": item.value for name, item in profile.environment.items()},
        "kv_cache.policy": profile.kv_cache.policy,
        **{f"serve.flags.{name}": item for name, item in profile.serve.flags.items()},
    }
    return [f"{name}: {json.dumps(value)}" for name, value in sorted(body.items())]
