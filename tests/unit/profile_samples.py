"""Profiles and facts for tests of console.profile and console.deploy, small and self-contained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from console.node.facts import Disk, Facts, Listener, Paths, UnitState, Venv
from console.node.gpu import Gpu, GpuFinding, GpuProcess, GpuSample
from console.profile.model import Profile

COMMIT = "0123456789abcdef0123456789abcdef01234567"

TEXT = f"""\
name: sample
model:
  repo: owner/Model-NVFP4
  revision: {COMMIT}
  folder: ~/srv/Model
  served_name: model
vllm:
  version: 0.16.0
  venv: ~/opt/vllm-0.16.0
serve:
  tensor_parallel_size: 2
service:
  unit: vllm-new.service
"""

MIB = 1 << 20


def profile_data(**changes: Any) -> dict[str, Any]:
    """The sample as plain data; `changes` replaces whole parts, `part__key` one value."""
    data: dict[str, Any] = {
        "name": "sample",
        "model": {"repo": "owner/Model-NVFP4", "revision": COMMIT, "folder": "~/srv/Model", "served_name": "model"},
        "vllm": {"version": "0.16.0", "venv": "~/opt/vllm-0.16.0"},
        "serve": {"tensor_parallel_size": 2, "flags": {}},
        "service": {"unit": "vllm-new.service", "limits": {"LimitMEMLOCK": "infinity", "LimitNOFILE": "1048576"}},
    }
    for name, value in changes.items():
        part, _, key = name.partition("__")
        if key:
            data.setdefault(part, {})[key] = value
        else:
            data[part] = value
    return data


def profile(**changes: Any) -> Profile:
    return Profile.model_validate(profile_data(**changes))


def unit_state(name: str, *, text: str | None = None, active: str = "active", **changes: Any) -> UnitState:
    values: dict[str, Any] = {
        "name": name, "load": "loaded", "active": active, "sub": "running", "result": "success", "main_pid": 4711,
        "invocation": "a" * 32, "cgroup": f"/system.slice/{name}", "fragment": f"/etc/systemd/system/{name}", "text": text,
        "need_reload": False, "enabled": "enabled", "restarts": 0,
    }  # fmt: skip
    return UnitState(**{**values, **changes})


def gpu(index: int, *, processes: tuple[GpuProcess, ...] = (), **changes: Any) -> Gpu:
    values: dict[str, Any] = {
        "index": index, "uuid": f"GPU-{index}", "name": "NVIDIA RTX PRO 6000 Blackwell Server Edition", "bus": f"0000:0{index}",
        "capability": (12, 0), "memory_total": 97887 * MIB, "memory_used": 0, "memory_reserved": 638 * MIB, "utilisation": 0,
        "power": 30.0, "power_limit": 600.0, "temperature": 30, "ecc_uncorrected": 0, "remap_pending": False,
        "remap_failed": False, "mig": False, "processes": processes, "lost": False,
    }  # fmt: skip
    return Gpu(**{**values, **changes})


def gpu_process(pid: int, mib: int, *, unit: str | None, owner: str | None = "root") -> GpuProcess:
    return GpuProcess(pid=pid, memory=mib * MIB, owner=owner, command="python3", unit=unit, started=1)


def sample(*gpus: Gpu, driver: str | None = "580.95.05", findings: tuple[GpuFinding, ...] = ()) -> GpuSample:
    return GpuSample(0.0, "nvml", driver, "13.0", gpus or (gpu(0), gpu(1)), findings)


def facts(**changes: Any) -> Facts:
    home = "/home/op"
    values: dict[str, Any] = {
        "host": "box", "boot_id": "b", "kernel": "6.8", "user": "op", "uid": 1000,
        "paths": Paths(home, "/etc/systemd/system", "/sys/fs/cgroup", "/dev/shm", "/var/lib/relaunch"),
        "python": "3.11.2", "systemd": 252,
        "tools": {name: f"/usr/bin/{name}" for name in ("systemctl", "systemd-run", "journalctl", "ss", "nvidia-smi")},
        "cpus": 64, "memory": 1 << 40, "memory_available": 1 << 39, "limits": {}, "gpus": sample(),
        "disks": {"~/srv/Model": Disk(f"{home}/srv/Model", "/", 10**12, 2 * 10**12, 10**6)},
        "units": {}, "venvs": {}, "folders": {}, "listeners": (), "shm_free": 1 << 36, "files": {}, "clock": 1e9,
    }  # fmt: skip
    return Facts(**{**values, **changes})


def venv(vllm: str | None = "0.16.0", *, path: str = "/home/op/opt/vllm-0.16.0", exists: bool = True) -> Venv:
    return Venv(path=path, exists=exists, python="3.12.3", vllm=vllm, hub="1.0.0")


def listener(port: int, *, unit: str | None, pid: int | None = 99) -> Listener:
    return Listener(port=port, address="127.0.0.1", pid=pid, unit=unit, command="python3")


def leaves(value: Any, loc: tuple[str | int, ...] = ()) -> list[tuple[tuple[str | int, ...], str]]:
    """Every text in nested data, with where it stands."""
    if isinstance(value, str):
        return [(loc, value)]
    if isinstance(value, Mapping):
        return [found for key, child in value.items() for found in leaves(child, (*loc, key))]
    if isinstance(value, (list, tuple)):
        return [found for index, child in enumerate(value) for found in leaves(child, (*loc, index))]
    return []
