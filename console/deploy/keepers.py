"""Processes that hold GPU memory on purpose and are no leak: weight caches, CUDA MPS, Ray, any other service of the node.

Recognised by the systemd service whose cgroup holds them, else by what their command line says that they are. Pure. A
process in a login's session, or in no unit at all, is no keeper: it may be a leftover, and is a stranger until somebody
looks. Nothing here is ever ended by Relaunch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from console.node.gpudata import Gpu, GpuProcess
from console.profile.model import Profile


@dataclass(frozen=True, slots=True)
class Keeper:
    """What holds the memory, in words, and how its owner makes it give it back."""

    name: str
    end: str


@dataclass(frozen=True, slots=True)
class _Known:
    shape: re.Pattern[str]
    keeper: Keeper


_KNOWN = tuple(
    _Known(re.compile(shape), Keeper(name, end))
    for shape, name, end in (
        # new in vLLM 0.33 (DOMAIN E.2): keeps the weights for `--load-format ipc_cache`
        (r"\bvllm\S* preload\b", "vLLM's weight cache (vllm preload)", "end `vllm preload` when it is not wanted"),
        (r"\bnvidia-cuda-mps-(server|control)\b", "the CUDA MPS daemon", "echo quit | nvidia-cuda-mps-control"),
        (r"^ray::|\braylet\b", "Ray", "ray stop"),
        (r"\bollama\b", "Ollama", "ollama stop MODEL, or stop its service"),
        (r"\btritonserver\b", "the Triton server", "stop its service"),
        (r"\blmcache\S*\b", "LMCache", "stop its server"),
    )
)
_CACHED_LOAD = "ipc_cache"


def keeper_of(process: GpuProcess, ours: Iterable[str] = ()) -> Keeper | None:
    """What `process` is when it holds its memory on purpose; None for a stranger and for processes of the units `ours`."""
    unit = process.unit if process.unit and process.unit.endswith(".service") else None
    if unit is not None and (unit in ours or unit.startswith("user@")):
        return None
    known = next((known.keeper for known in _KNOWN if known.shape.search(process.command or "")), None)
    if unit is None:
        return known
    end = f"systemctl stop {unit}"
    if process.owner not in (None, "root"):
        end += f", or systemctl --user stop {unit} as {process.owner}"
    return Keeper(f"{known.name}, {unit}" if known else f"the service {unit}", end)


def utilisation(profile: Profile) -> float:
    """The share of each GPU's memory that the server takes."""
    value = profile.serve.flags.get("gpu-memory-utilization", 0.92)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else 0.92


def makes_room(profile: Profile, gpu: Gpu, kept: Sequence[GpuProcess], idle: int) -> bool:
    """Whether a GPU is as good as idle although these hold memory on it: nothing but they and up to `idle` bytes is in
    use, and beside them the server's share is free, or the server is to load its weights from such a cache."""
    if gpu.memory_used is None or not kept or any(process.memory is None for process in kept):
        return False
    held = sum(process.memory or 0 for process in kept)
    if gpu.memory_used - held > idle:
        return False
    if profile.serve.flags.get("load-format") == _CACHED_LOAD:
        return True
    return gpu.memory_total is not None and gpu.memory_total - gpu.memory_used >= gpu.memory_total * utilisation(
        profile
    )
