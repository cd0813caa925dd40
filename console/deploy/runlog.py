"""What a run keeps of itself on the operator's machine, beside its events: `evidence/RUN/`, redacted, mode 0700.

Here: what it began with (`run.json`) and the GPU memory over time (`gpu-memory.jsonl`); `console.deploy.evidence` adds what
a failure left behind, and `console.deploy.report` makes a page of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from console import __version__
from console.node.gpu import GpuSample
from console.text import clean, redact

if TYPE_CHECKING:
    from console.deploy.step import Context

GPU_MEMORY = "gpu-memory.jsonl"
ABOUT = "run.json"


def note_gpus(ctx: Context, sample: GpuSample | None) -> None:
    """One line of bytes used per GPU into the run's folder, at most one a second; costs the node nothing, since somebody
    had the sample anyhow."""
    place = ctx.options.get("evidence_dir")
    now = time.time()
    if place is None or sample is None or not sample.gpus or now - ctx.found.get("gpus-noted", 0.0) < 1.0:
        return
    ctx.found["gpus-noted"] = now
    line = {"time": now, "used": [gpu.memory_used for gpu in sample.gpus], "total": sample.gpus[0].memory_total}
    with contextlib.suppress(OSError):
        folder = Path(place)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(folder / GPU_MEMORY, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as handle:
            handle.write(json.dumps(line) + "\n")


def note_run(ctx: Context) -> None:
    """What the run began with: machine, versions, profile. For a report, and for whoever looks years later."""
    place = ctx.options.get("evidence_dir")
    if place is None:
        return
    facts, profile = ctx.facts, ctx.profile
    gpus = facts.gpus
    about = {
        "relaunch": __version__,
        "host": facts.host,
        "kernel": facts.kernel,
        "systemd": facts.systemd,
        "python": facts.python,
        "cpus": facts.cpus,
        "memory": facts.memory,
        "driver": None if gpus is None else gpus.driver,
        "cuda": None if gpus is None else gpus.cuda,
        "gpus": [] if gpus is None else [[gpu.name, gpu.memory_total] for gpu in gpus.gpus],
        "vllm": {venv.path: venv.vllm for venv in facts.venvs.values()},
        "units": {unit.name: f"{unit.active}/{unit.sub}" for unit in facts.units.values()},
        "profile": profile.model_dump(mode="json"),
    }
    with contextlib.suppress(OSError):
        write_parts(ctx, {ABOUT: as_json(about)})


def write_parts(ctx: Context, parts: Mapping[str, str]) -> None:
    """Put texts into the run's folder, cleaned and redacted, for its owner's eyes only. Raises OSError."""
    folder = Path(ctx.options["evidence_dir"])
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name, text in parts.items():
        safe = redact(clean(text), (ctx.token,))
        descriptor = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as handle:
            handle.write(safe)


def as_json(data: Any) -> str:
    return json.dumps(data, indent=1, default=str) + "\n"
