"""GPU telemetry: what a node's GPUs say, every field a value or unknown, every trouble a named finding.

Sources, best first: the stdlib-only agent in `console/node/agent` with the node's own pynvml, the same with the bundled
pynvml source, one long-lived `nvidia-smi` loop. Never one fork per sample. A field that the driver does not give is None.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GpuProcess:
    pid: int
    memory: int | None
    """Bytes; None when the driver does not tell."""
    owner: str | None
    command: str | None
    unit: str | None
    """The systemd unit whose cgroup holds it."""
    started: int | None
    """Start time in clock ticks since boot (/proc/PID/stat field 22): with the pid, the identity of a process."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU at one moment. Memory in bytes, power in watts, temperature in °C, utilisation in percent."""

    index: int
    uuid: str | None
    name: str | None
    bus: str | None
    capability: tuple[int, int] | None
    memory_total: int | None
    memory_used: int | None
    memory_reserved: int | None
    utilisation: int | None
    power: float | None
    power_limit: float | None
    temperature: int | None
    ecc_uncorrected: int | None
    remap_pending: bool | None
    remap_failed: bool | None
    mig: bool | None
    processes: tuple[GpuProcess, ...]
    lost: bool = False


@dataclass(frozen=True, slots=True)
class GpuFinding:
    """Something wrong or remarkable: id, GPU index or None for the whole node, what it means, what to do."""

    id: str
    gpu: int | None
    text: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class GpuSample:
    """All GPUs of a node at one moment. `source` says how it was read: nvml, nvml-bundled, nvidia-smi."""

    time: float
    source: str
    driver: str | None
    cuda: str | None
    gpus: tuple[Gpu, ...]
    findings: tuple[GpuFinding, ...]
