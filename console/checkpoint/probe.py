"""Asking the installed vLLM itself which KV dtypes its TRITON_MLA takes, and remembering the answer on the node.

Nightlies confuse version strings, so what is installed beats the version table (DOMAIN B.2). Costs one exec per
environment and vLLM version, and nothing once the answer is remembered.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
from pathlib import Path
from typing import TYPE_CHECKING

from console.checkpoint.hub import make_folder
from console.node.script import ask

if TYPE_CHECKING:
    from console.deploy.step import Context
    from console.node.facts import Facts
    from console.profile.model import Profile

_SCRIPT = Path(__file__).with_name("node_probe.py")
FOUND = "kv-probe"
"""Key in `Context.found` of what this run has probed: a tuple of dtypes, or None when there is no answer."""


def cache_file(facts: Facts, profile: Profile) -> str | None:
    """Where the answer for the profile's environment is remembered; None while no vLLM is installed there."""
    venv = facts.venvs.get(facts.path(profile.vllm.venv))
    if venv is None or not venv.vllm:
        return None
    digest = hashlib.sha256(f"{venv.path}\n{venv.vllm}".encode()).hexdigest()[:12]
    return facts.path(f"state:/probe/kv-{digest}.json")


def remembered(facts: Facts, profile: Profile) -> tuple[str, ...] | None:
    """The dtypes that an earlier run was told; None when it was not asked."""
    path = cache_file(facts, profile)
    text = facts.files.get(path) if path else None
    try:
        data = json.loads(text) if text else None
    except ValueError:
        return None
    dtypes = data.get("dtypes") if isinstance(data, dict) else None
    return tuple(str(dtype) for dtype in dtypes) if isinstance(dtypes, list) else None


def known(ctx: Context) -> tuple[str, ...] | None:
    """What is known in this run: probed just now, or remembered. None: the version table counts."""
    return ctx.found[FOUND] if FOUND in ctx.found else remembered(ctx.facts, ctx.profile)


async def probe(ctx: Context) -> tuple[str, ...] | None:
    """What is known, asking the node when nothing is and vLLM is installed."""
    if known(ctx) is None and FOUND not in ctx.found and cache_file(ctx.facts, ctx.profile) is not None:
        venv = ctx.facts.path(ctx.profile.vllm.venv)
        answer = await ask(ctx.node, "kv probe", _SCRIPT.read_text(encoding="utf-8"), {"venv": venv})
        dtypes = answer.get("dtypes")
        ctx.found[FOUND] = tuple(str(dtype) for dtype in dtypes) if dtypes else None
    return known(ctx)


async def remember(ctx: Context) -> None:
    """Keep what was probed in this run for the next ones."""
    path, dtypes = cache_file(ctx.facts, ctx.profile), ctx.found.get(FOUND)
    if path and dtypes and path not in ctx.facts.files:
        await make_folder(ctx.node, posixpath.dirname(path))
        data = {"venv": ctx.facts.path(ctx.profile.vllm.venv), "dtypes": list(dtypes)}
        await ctx.node.write(path, json.dumps(data).encode() + b"\n", sudo=True)
