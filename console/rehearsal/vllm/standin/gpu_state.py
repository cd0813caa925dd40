"""The practice node's GPUs: who holds how much memory of which GPU, as small files that every stand-in can read.

`ROOT/gpu/<index>/<pid>` is a JSON object {"mib": N, "started": ticks, "busy": percent, "name": text}. It counts only
while the process with that pid and that start time lives, as a driver frees memory when a process goes. `ROOT/gpu/config.json`
may change what the machine has. Stdlib only, so that it runs on a bare test node.
"""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from dataclasses import dataclass, fields
from pathlib import Path

ROOT_VARIABLE = "RELAUNCH_PRACTICE_ROOT"
NODE_ROOT = "/var/lib/relaunch-practice"
IDLE_MIB = 4
"""What an idle RTX PRO 6000 shows as used."""


@dataclass(frozen=True)
class Machine:
    """What the GPUs are. Memory in MiB, power in watts."""

    count: int = 8
    name: str = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
    capability: str = "12.0"
    memory_mib: int = 97887
    power_limit: float = 600.0
    driver: str = "595.71.05"
    cuda: str = "13.2"

    @property
    def major_minor(self) -> tuple[int, int]:
        major, _, minor = self.capability.partition(".")
        return int(major), int(minor or 0)


@dataclass(frozen=True)
class Holder:
    """A live process that holds memory of one GPU. `busy` is the load it puts on the GPU, in percent."""

    pid: int
    mib: int
    busy: int
    name: str


@dataclass(frozen=True)
class GpuState:
    """One GPU at one moment. Memory in MiB, power in watts, temperature in °C, utilisation in percent."""

    index: int
    uuid: str
    bus: str
    used_mib: int
    reserved_mib: int
    utilisation: int
    power: float
    temperature: int
    holders: tuple[Holder, ...]


def practice_root() -> Path:
    """ROOT of this node: from the environment, else the folder that a test node keeps."""
    return Path(os.environ.get(ROOT_VARIABLE) or NODE_ROOT)


def machine(root: Path) -> Machine:
    """What the GPUs of this node are; the eight of the mission where nothing else is configured."""
    try:
        given = json.loads((root / "gpu" / "config.json").read_text())
    except (OSError, ValueError):
        return Machine()
    known = {field.name for field in fields(Machine)}
    return Machine(**{key: value for key, value in given.items() if key in known})


def start_ticks(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot, field 22 of /proc/PID/stat; None when it is gone or a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            rest = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if rest[0] in (b"Z", b"X") else int(rest[19])


def lives(pid: int, started: int | None) -> bool:
    """Whether exactly that process lives. Without /proc the pid alone must do."""
    if os.path.isdir("/proc/self"):
        now = start_ticks(pid)
        return now is not None and started in (None, now)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def hold(root: Path, index: int, mib: int, *, busy: int = 0, name: str = "", pid: int | None = None) -> None:
    """Say how much memory of GPU `index` the process `pid` (this one by default) holds now."""
    pid = os.getpid() if pid is None else pid
    folder = root / "gpu" / str(index)
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"mib": int(mib), "started": start_ticks(pid), "busy": busy, "name": name})
    draft = folder / f".{pid}.new"
    draft.write_text(text)
    os.replace(draft, folder / str(pid))


def release(root: Path, index: int, pid: int | None = None) -> None:
    """The process holds no memory of GPU `index` any more."""
    with contextlib.suppress(OSError):
        os.unlink(root / "gpu" / str(index) / str(os.getpid() if pid is None else pid))


def holders(root: Path, index: int) -> tuple[Holder, ...]:
    """Every live process that holds memory of GPU `index`, by pid."""
    found = []
    try:
        names = os.listdir(root / "gpu" / str(index))
    except OSError:
        return ()
    for name in sorted((name for name in names if name.isdigit()), key=int):
        try:
            data = json.loads((root / "gpu" / str(index) / name).read_text())
            mib, started = int(data["mib"]), data.get("started")
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if lives(int(name), started):
            found.append(Holder(int(name), mib, int(data.get("busy") or 0), str(data.get("name") or "")))
    return tuple(found)


def gpu(root: Path, index: int, what: Machine | None = None) -> GpuState:
    """GPU `index` as the driver would show it now."""
    what = what or machine(root)
    held = holders(root, index)
    busy = min(100, sum(holder.busy for holder in held))
    # idle 14 W, a context alone keeps the clocks up, full load runs at the limit; the ranks differ a little, as cards do
    power = 14.0 + (52.0 if held else 0.0) + (what.power_limit - 90.0) * busy / 100 + index * 0.7
    if held and busy == 100 and all(holder.name.endswith(":spin") for holder in held if holder.busy):
        power = 140.0 + index  # a collective that spins: 100 % and little power
    return GpuState(
        index=index,
        uuid=f"GPU-{uuid.uuid5(uuid.NAMESPACE_OID, f'relaunch-practice-{index}')}",
        bus=f"00000000:{(index + 1) * 0x10 + 1:02X}:00.0",
        used_mib=min(what.memory_mib, IDLE_MIB + sum(holder.mib for holder in held)),
        reserved_mib=638,
        utilisation=busy,
        power=round(power, 2),
        temperature=30 + index % 3 + (6 if held else 0) + busy * 38 // 100,
        holders=held,
    )


def gpus(root: Path) -> tuple[GpuState, ...]:
    """All GPUs of the node now."""
    what = machine(root)
    return tuple(gpu(root, index, what) for index in range(what.count))
