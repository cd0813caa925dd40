"""What a GPU reading is: frozen data shared by the telemetry agent's decoder, the nvidia-smi parsers and the facts."""

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


def blank_gpu(index: int, *, lost: bool = False, bus: str | None = None) -> Gpu:
    """A GPU of which nothing but its index is known."""
    return Gpu(
        index=index, uuid=None, name=None, bus=bus, capability=None, memory_total=None, memory_used=None,
        memory_reserved=None, utilisation=None, power=None, power_limit=None, temperature=None, ecc_uncorrected=None,
        remap_pending=None, remap_failed=None, mig=None, processes=(), lost=lost,
    )  # fmt: skip
