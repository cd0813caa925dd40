"""What preflight looks at on the machine itself: facts and profile in, findings out. Pure.

Each check yields at least one finding, so that what was looked at and found well is told too. Refusals are what would
certainly end in a failed start after the old service was stopped; what may end well is a warning. Unknown is never taken
for good: it is a warning that says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from console.deploy.keepers import keeper_of, utilisation
from console.findings import Finding, allow, refuse, warn
from console.node.facts import Disk, Facts, Listener, UnitState, Venv
from console.node.gpu import Gpu, GpuProcess, GpuSample
from console.profile.model import Profile
from console.text import gib, plural, size

T = TypeVar("T")

SYSTEMD_LEAST = 240
"""The first systemd with Type=exec."""
DRIVER_LEAST_SM120 = 570
"""The first NVIDIA driver branch that knows RTX PRO 6000 Blackwell."""
SHM_LEAST = 1 << 30
"""Bytes of /dev/shm: NCCL and vLLM's message queues of eight ranks take some hundred MB."""
VENV_BYTES = 15 * 10**9
"""Room for a new environment: vLLM with torch and CUDA libraries unpacks to some 10 GB."""
_TOOLS = ("systemctl", "systemd-run", "journalctl")
# Telemetry findings that certainly keep vLLM from starting; the others are warnings
_FATAL_GPU = frozenset(
    {"driver-mismatch", "driver-not-loaded", "no-devices", "no-driver", "gpu-lost", "needs-reset", "mig", "nvml-failed"}
)
# Of these the sample has told already what it means for what follows
_QUIET_GPU = frozenset({"smi-cut", "index-unsure", "unified-memory", "field-error"})


def machine(profile: Profile, facts: Facts) -> Iterator[Finding]:
    """Every finding about the node itself."""
    for check in CHECKS:
        yield from check(profile, facts)


def asked(table: Mapping[str, T], facts: Facts, path: str) -> T | None:
    """The entry of `facts.disks`, `facts.venvs` or `facts.folders` for a path of the profile."""
    return table.get(path) or table.get(facts.path(path))


def world_size(profile: Profile) -> int:
    """How many GPUs the server takes: tensor times pipeline parallel ranks."""
    pipeline = profile.serve.flags.get("pipeline-parallel-size", 1)
    return profile.serve.tensor_parallel_size * (pipeline if isinstance(pipeline, int) else 1)


def systemd(profile: Profile, facts: Facts) -> Iterator[Finding]:
    absent = [tool for tool in _TOOLS if tool not in facts.tools]
    if absent or facts.systemd is None:
        what = " and ".join(absent) or "a running systemd"
        yield refuse("systemd", f"{facts.host} has no {what}", "Relaunch needs a node whose services systemd runs")
    elif facts.systemd < SYSTEMD_LEAST:
        yield refuse(
            "systemd", f"systemd {facts.systemd} knows no Type=exec", f"systemd {SYSTEMD_LEAST} or newer is needed"
        )
    else:
        yield allow("systemd", f"systemd {facts.systemd}")


def gpus(profile: Profile, facts: Facts) -> Iterator[Finding]:
    sample = facts.gpus
    if sample is None:
        why = next((text for text in facts.missing if "gpu" in text.lower() or "nvidia" in text.lower()), "")
        yield refuse(
            "gpus", "the GPUs could not be read" + (f": {why}" if why else ""), "look at nvidia-smi on the node"
        )
        return
    told = set()
    for found in sample.findings:
        if found.id in _QUIET_GPU or (found.id, found.gpu) in told:
            continue
        told.add((found.id, found.gpu))
        level = refuse if found.id in _FATAL_GPU else warn
        yield level(f"gpu-{found.id}", found.text, found.remedy)
    usable = [gpu for gpu in sample.gpus if not gpu.lost]
    visible = profile.environment.get("CUDA_VISIBLE_DEVICES")
    count = min(len(usable), len([d for d in visible.value.split(",") if d.strip()])) if visible else len(usable)
    wanted = world_size(profile)
    if count < wanted:
        said = f"the profile needs {plural(wanted, 'GPU')} and {count} can be used"
        yield refuse("gpu-count", said, "a GPU may have dropped off the bus; else lower serve.tensor_parallel_size")
    else:
        names = sorted({gpu.name or "an unnamed GPU" for gpu in usable})
        yield allow("gpu-count", f"{count} x {', '.join(names)}, {wanted} needed")
    yield from _capability(sample, usable)


def _capability(sample: GpuSample, usable: list[Gpu]) -> Iterator[Finding]:
    kinds = sorted({gpu.capability for gpu in usable if gpu.capability})
    if not usable:
        return
    if not kinds:
        yield warn(
            "capability",
            "the compute capability is not told by the driver",
            "KV cache and kernels are decided without it",
        )
        return
    told = ", ".join(f"{major}.{minor}" for major, minor in kinds)
    if len(kinds) > 1:
        yield warn(
            "capability", f"the GPUs differ: compute capability {told}", "one model runs at the pace of the slowest"
        )
    major = sample.driver.split(".", 1)[0] if sample.driver else ""
    if kinds[-1][0] >= 12 and major.isdigit() and int(major) < DRIVER_LEAST_SM120:
        text = f"driver {sample.driver} is older than compute capability {told}"
        yield refuse("driver", text, f"install driver {DRIVER_LEAST_SM120} or newer")
    elif not sample.driver:
        yield warn("driver", "the driver's version is not told")
    else:
        yield allow("driver", f"driver {sample.driver}, compute capability {told}")


def foreign_memory(profile: Profile, facts: Facts) -> Iterator[Finding]:
    """GPU memory held by processes that the redeploy will not stop. vLLM wants its share free at start (DOMAIN D.10)."""
    ours = {profile.service.unit, *profile.replaces}
    share = utilisation(profile)
    clean = True
    for gpu in facts.gpus.gpus[: world_size(profile)] if facts.gpus else ():
        others = [process for process in gpu.processes if process.unit not in ours and process.memory]
        if not others:
            continue
        clean = False
        held = sum(process.memory or 0 for process in others)
        who = ", ".join(_process(process) for process in others)
        text = f"GPU {gpu.index}: {gib(held)} are held by {who}, which this redeploy does not stop"
        known = all(process.unit is not None or process.owner is not None for process in others)
        if known and gpu.memory_total and held > gpu.memory_total * (1 - share):
            yield refuse("foreign-memory", text, f"{_ending(others)}, or name its unit in replaces")
        else:
            yield warn("foreign-memory", text, _ending(others, "end it if it is a leftover"))
    if clean:
        yield allow("foreign-memory", "no process but ours and those to be replaced holds GPU memory")


def _ending(processes: list[GpuProcess], stranger: str = "end it") -> str:
    """What makes these give their memory back."""
    keepers = [keeper_of(process) for process in processes]
    return "; ".join(dict.fromkeys(keeper.end if keeper else stranger for keeper in keepers))


def _process(process: GpuProcess) -> str:
    keeper = keeper_of(process)
    who = process.unit or process.owner or "an unknown account"
    on_purpose = f", {keeper.name}, which keeps it on purpose" if keeper else ""
    return f"pid {process.pid} ({process.command or 'unknown program'}, {who}){on_purpose}"


def port(profile: Profile, facts: Facts) -> Iterator[Finding]:
    number = profile.service.port
    ours = {profile.service.unit, *profile.replaces}
    holders = [listener for listener in facts.listeners if listener.port == number]
    bad = [listener for listener in holders if listener.unit not in ours]
    for listener in bad:
        if listener.pid is None and listener.unit is None:
            yield warn("port", f"something listens on port {number}; this login may not see what", "look as root")
        else:
            yield refuse(
                "port", f"port {number} is held by {_listener(listener)}", "stop it, or name its unit in replaces"
            )
    if holders and not bad:
        yield allow("port", f"port {number} is held by {holders[0].unit}, which is ours or is stopped first")
    elif not holders:
        yield allow("port", f"port {number} is free")


def _listener(listener: Listener) -> str:
    unit = f" of {listener.unit}" if listener.unit else ""
    return f"pid {listener.pid} ({listener.command or 'unknown program'}){unit}"


def units(profile: Profile, facts: Facts) -> Iterator[Finding]:
    own = facts.units.get(profile.service.unit)
    if own is not None and own.load == "masked":
        yield refuse("unit", f"{own.name} is masked", f"systemctl unmask {own.name}")
    elif own is not None and _elsewhere(own, facts):
        yield warn(
            "unit", f"{own.name} is installed in {own.fragment} as well", f"{facts.paths.units} takes precedence"
        )
    else:
        yield allow("unit", f"{profile.service.unit} is ours to write")
    for name in profile.replaces:
        state = facts.units.get(name)
        if state is None:
            yield warn("replaces", f"{name} was not looked at", "run again")
        elif state.load == "not-found":
            yield warn(
                "replaces", f"{name} does not exist on {facts.host}, so there is nothing to stop", "check the name"
            )
        else:
            yield allow("replaces", f"{name} is {state.active}")


def _elsewhere(unit: UnitState, facts: Facts) -> bool:
    return bool(unit.fragment) and unit.fragment != f"{facts.paths.units}/{unit.name}"


def engine(profile: Profile, facts: Facts) -> Iterator[Finding]:
    venv = asked(facts.venvs, facts, profile.vllm.venv)
    wanted = profile.vllm.version
    if conflict := venv_conflict(profile, venv):
        yield refuse("engine", conflict, "name another folder in vllm.venv; an environment is never changed in place")
    elif venv is not None and venv.vllm == wanted:
        yield allow("engine", f"vLLM {wanted} is in {venv.path}")
    else:
        tool = "uv" if "uv" in facts.tools else f"python {facts.python}"
        yield allow("engine", f"vLLM {wanted} will be installed into {profile.vllm.venv} by {tool}")


def venv_conflict(profile: Profile, venv: Venv | None) -> str | None:
    """Why an existing environment cannot be used for the wanted vLLM, or None."""
    if venv is None or not venv.exists or venv.vllm is None or venv.vllm == profile.vllm.version:
        return None
    return f"{venv.path} holds vLLM {venv.vllm}, and the profile wants {profile.vllm.version}"


def disk(profile: Profile, facts: Facts) -> Iterator[Finding]:
    """Room for what is not the model; the model's own room is planned with its file sizes."""
    venv = asked(facts.venvs, facts, profile.vllm.venv)
    room = asked(facts.disks, facts, profile.vllm.venv)
    if (venv is None or venv.vllm is None) and room is not None and room.free < VENV_BYTES:
        text = f"{size(room.free)} are free for a new environment in {profile.vllm.venv}"
        yield warn("disk-engine", text, f"vLLM with its libraries takes some {size(VENV_BYTES)}")
    seen = {disk.mount: disk for disk in facts.disks.values()}
    for mount, found in sorted(seen.items()):
        yield from _inodes(mount, found)


def _inodes(mount: str, found: Disk) -> Iterator[Finding]:
    # 0 is what file systems without inode tables answer (btrfs)
    if found.inodes_free and found.inodes_free < 1000:
        yield refuse("disk-inodes", f"{mount} has {found.inodes_free} inodes left", "remove small files there")
    elif found.free < 50 * 10**6:
        yield refuse("disk", f"{mount} has {size(found.free)} left", "make room; unit, state and caches need some")
    else:
        yield allow("disk", f"{mount} has {size(found.free)} free")


def shm(profile: Profile, facts: Facts) -> Iterator[Finding]:
    if facts.shm_free is None:
        yield warn("shm", "the room in /dev/shm is unknown")
    elif facts.shm_free < SHM_LEAST:
        text = f"{facts.paths.shm} has {size(facts.shm_free)} free"
        yield warn(
            "shm", text, "leftovers of killed servers (psm_*, sem.mp-*, nccl-*) are removed once nobody holds them"
        )
    else:
        yield allow("shm", f"{facts.paths.shm} has {size(facts.shm_free)} free")


def limits(profile: Profile, facts: Facts) -> Iterator[Finding]:
    """The unit's limits count, not the login's: vLLM wants 65535 files, NCCL pinned memory (DOMAIN D.24)."""
    files = profile.service.limits.get("LimitNOFILE", "")
    if files and files != "infinity" and files.isdigit() and int(files) < 65535:
        yield warn("limits", f"LimitNOFILE is {files}", "vLLM wants 65535 or more")
    elif not files:
        yield warn(
            "limits", "the profile sets no LimitNOFILE, and systemd's default is 1024", "say LimitNOFILE: 1048576"
        )
    if profile.service.limits.get("LimitMEMLOCK") != "infinity":
        yield warn(
            "limits", "the profile sets no LimitMEMLOCK: infinity", 'NCCL fails with "unhandled system error" without'
        )
    else:
        yield allow("limits", f"LimitNOFILE {files or 'unset'}, LimitMEMLOCK infinity")


CHECKS: tuple[Callable[[Profile, Facts], Iterator[Finding]], ...] = (
    systemd, gpus, foreign_memory, port, units, engine, disk, shm, limits,
)  # fmt: skip
