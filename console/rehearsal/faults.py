"""What can be made to go wrong on the practice node: names, where each bites, and the file that says which are on.

`ROOT/faults.json` is {"name": …, "step": …, "faults": [{"name": …, "step": …}, …]}; the first pair repeats the first
fault for stand-ins that know one at a time. Whoever plays a part reads the file when it acts; nothing is sent around.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from console.errors import UsageError

STEPS = (
    "inspect", "preflight", "engine", "space", "download", "shards", "patch", "unit",
    "stop", "drain", "launch", "ready", "throughput", "keep",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that can be chosen. `step` is where it bites unless told otherwise."""

    name: str
    text: str
    step: str


CATALOGUE: tuple[Fault, ...] = (
    Fault("fp8-kv", "the KV patch is undone before the launch: no attention backend takes FP8 KV on SM120", "launch"),
    Fault("bad-flag", "vLLM does not know a flag of the unit", "launch"),
    Fault("oom", "CUDA runs out of memory while the weights load", "launch"),
    Fault("missing-shard", "one shard is gone after the download", "shards"),
    Fault("stall", "the download stops sending bytes", "download"),
    Fault("disk-full", "the disk is full in the middle of the download", "download"),
    Fault("port-in-use", "another process listens on the port when the new service starts", "launch"),
    Fault("orphan", "a process outside of every unit holds GPU memory after the stop", "stop"),
    Fault("never-starts", "the unit's program cannot be executed", "launch"),
    Fault("hang", "the launch says nothing more after the NCCL line", "launch"),
    Fault("garbage", "the model answers with nonsense", "ready"),
    Fault("slow-stop", "the old server ignores SIGTERM and has to be killed", "stop"),
    Fault("drop", "the SSH link is cut and comes back", "download"),
    Fault("slow", "the SSH link has a high latency and little bandwidth", "inspect"),
)  # fmt: skip
_BY_NAME = {fault.name: fault for fault in CATALOGUE}


@dataclass(frozen=True, slots=True)
class Chosen:
    """A fault that is on, and the step at which it bites."""

    name: str
    step: str


def parse(specs: Iterable[str]) -> tuple[Chosen, ...]:
    """`NAME` or `NAME:step` each; raises UsageError that names what there is."""
    chosen = []
    for spec in specs:
        name, _, step = spec.partition(":")
        fault = _BY_NAME.get(name)
        if fault is None:
            raise UsageError(f"there is no fault {name!r}", f"choose one of {', '.join(_BY_NAME)}")
        if step and step not in STEPS:
            raise UsageError(f"there is no step {step!r} for the fault {name}", f"choose one of {', '.join(STEPS)}")
        chosen.append(Chosen(name, step or fault.step))
    return tuple(chosen)


def write(path: Path, chosen: tuple[Chosen, ...]) -> None:
    """Replace the fault file; no fault removes it."""
    if not chosen:
        path.unlink(missing_ok=True)
        return
    rows = [{"name": fault.name, "step": fault.step} for fault in chosen]
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = path.with_suffix(".new")
    staged.write_text(json.dumps({**rows[0], "faults": rows}))
    os.replace(staged, path)


def read(path: Path) -> tuple[Chosen, ...]:
    """The faults that are on; none when there is no file."""
    try:
        data = json.loads(path.read_text())
        rows = data.get("faults") or [data]
        return tuple(Chosen(str(row["name"]), str(row.get("step") or "")) for row in rows)
    except FileNotFoundError:
        return ()


def chosen(path: Path, name: str) -> Chosen | None:
    """The fault `name` when it is on."""
    return next((fault for fault in read(path) if fault.name == name), None)
