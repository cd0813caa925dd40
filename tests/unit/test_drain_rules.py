"""Which GPUs are waited for, who is a stranger on them, and when waiting ends. Pure; on a node: tests/rehearsal."""

from __future__ import annotations

import types
from dataclasses import replace
from typing import Any

import pytest

from console.deploy.steps import drain, inspect, stop
from console.deploy.steps.stop import Stopped
from console.errors import NotReady
from console.events import Progressed
from console.node.facts import UnitState
from console.node.findings import finding
from console.node.gpu import Gpu, GpuProcess, GpuSample
from console.node.gpudata import blank_gpu
from console.node.leftovers import Possessions, Process
from console.node.systemd import parse_state
from console.profile.load import find_profile
from console.profile.model import Variable

GIB = 1 << 30


def gpu(index: int, used: int | None, *processes: GpuProcess, **more: Any) -> Gpu:
    return replace(blank_gpu(index), memory_total=96 * GIB, memory_used=used, processes=processes, **more)


def process(pid: int, unit: str | None = None, started: int | None = 5) -> GpuProcess:
    return GpuProcess(pid, 20 * GIB, "alice", "python train.py", unit, started)


def sample(*gpus: Gpu) -> GpuSample:
    return GpuSample(0.0, "nvml", "580", "13.0", gpus, tuple(finding("gpu-lost", g.index) for g in gpus if g.lost))


@pytest.fixture
def ctx() -> Any:
    told: list[Any] = []
    return types.SimpleNamespace(profile=find_profile("rehearsal"), found={}, emit=told.append, told=told)


def test_the_gpus_of_the_service(ctx: Any) -> None:
    every = tuple(gpu(index, 0, uuid=f"GPU-{index}") for index in range(10))
    assert [one.index for one in drain.wanted_gpus(ctx.profile, every)] == list(range(8))
    some = ctx.profile.model_copy(update={"environment": {"CUDA_VISIBLE_DEVICES": Variable(value="9, GPU-3")}})
    assert [one.index for one in drain.wanted_gpus(some, every)] == [3, 9]


def test_idle_is_a_level_and_not_zero() -> None:
    assert drain.busy([gpu(0, 600 << 20), gpu(1, 2 * GIB), gpu(2, None), gpu(3, None, process(1))]) == (
        gpu(1, 2 * GIB),
        gpu(3, None, process(1)),
    )


def test_ours_are_known_by_unit_and_by_identity(ctx: Any) -> None:
    ctx.found["stop"] = Stopped(("vllm-glm5.service",), Possessions(processes=(Process(7, 70, 0, "VLLM"),)))
    card = gpu(
        0,
        9 * GIB,
        process(1, "vllm-glm5.service"),
        process(2, "vllm-kimi.service"),
        process(7, started=70),
        process(7, started=71),
        process(3),
    )
    assert [(one.pid, one.started) for _, one in drain.strangers(ctx, [card])] == [(7, 71), (3, 5)]


def test_all_idle_ends_the_wait(ctx: Any) -> None:
    cards = tuple(gpu(index, 4 << 20) for index in range(8))
    assert drain.Vigil(ctx).look(sample(*cards)) == cards
    assert drain.level(cards) == "8 GPUs idle, 4 MiB in use at most"


def test_memory_that_still_shrinks_is_waited_for_even_beside_a_stranger(ctx: Any) -> None:
    vigil = drain.Vigil(ctx)
    for used in (80, 60, 40):
        vigil.still_since -= drain.SETTLE + drain.PATIENCE
        assert vigil.look(sample(gpu(0, used * GIB, process(3)))) is None
    assert [event.text for event in ctx.told if isinstance(event, Progressed)][
        -1
    ] == "0 of 1 GPUs idle, 40.0 GiB still in use"


def stayed(ctx: Any, *cards: Gpu) -> Any:
    """What a vigil ends with when nothing on these cards moves any more."""
    vigil = drain.Vigil(ctx)
    if (first := vigil.look(sample(*cards))) is not None:
        return first
    vigil.still_since -= drain.SETTLE + 1
    with pytest.raises((NotReady, drain.Orphans)) as caught:
        vigil.look(sample(*cards))
    return caught.value


def test_a_stranger_that_stays_is_named_with_owner_command_and_pid(ctx: Any) -> None:
    error = stayed(ctx, gpu(0, 20 * GIB, process(3, "session-4.scope")))
    for word in ("GPU 0", "20.0 GiB", "pid 3", "alice", "python train.py", "session-4.scope"):
        assert word in error.message
    assert "on purpose" not in error.message
    assert "pid 3" in error.remedy


@pytest.mark.parametrize(
    ("unit", "command", "named", "end"),
    [
        ("cache.service", "/opt/vllm/bin/vllm preload /srv/glm", "vLLM's weight cache (vllm preload), cache.service",
         "systemctl stop cache.service, or systemctl --user stop cache.service as alice"),
        (None, "nvidia-cuda-mps-server", "the CUDA MPS daemon", "nvidia-cuda-mps-control"),
        ("session-1.scope", "ray::RayWorkerWrapper", "Ray", "ray stop"),
        ("train.service", "python train.py", "the service train.service", "replaces: train.service"),
    ],
)  # fmt: skip
def test_a_daemon_that_keeps_memory_is_named_as_one_and_put_up_with_where_the_server_fits(
    ctx: Any, unit: str | None, command: str, named: str, end: str
) -> None:
    daemon = replace(process(3, unit), command=command)
    error = stayed(ctx, gpu(0, 20 * GIB, daemon))
    assert f"{named}, which keeps it on purpose" in error.message
    assert end in error.remedy
    assert "pid 3" not in error.remedy
    card = gpu(0, 4 * GIB, replace(daemon, memory=int(3.8 * GIB)))
    assert stayed(ctx, card) == (card,)
    beside = gpu(0, 6 * GIB, replace(daemon, memory=int(3.8 * GIB)))
    assert isinstance(stayed(ctx, beside), NotReady), "something else is in use there too"


def test_what_our_units_left_is_no_stranger_and_no_keeper(ctx: Any) -> None:
    ctx.found["stop"] = Stopped(("vllm-glm5.service",), Possessions(processes=(Process(7, 70, 0, "VLLM"),)))
    held = gpu(0, 40 * GIB, process(1, "vllm-glm5.service"), process(7, "session-2.scope", started=70), process(9))
    error = stayed(ctx, held)
    assert isinstance(error, drain.Orphans)
    assert [one.pid for _, one in error.holders] == [1, 7]


def test_memory_without_a_visible_holder_is_told_after_a_longer_wait(ctx: Any) -> None:
    vigil = drain.Vigil(ctx)
    vigil.look(sample(gpu(0, 20 * GIB)))
    vigil.still_since -= drain.SETTLE + 1
    assert vigil.look(sample(gpu(0, 20 * GIB))) is None
    vigil.still_since -= drain.PATIENCE
    with pytest.raises(NotReady, match="no process that holds it can be seen"):
        vigil.look(sample(gpu(0, 20 * GIB)))


@pytest.mark.parametrize("cards", [(), (gpu(0, 0), replace(blank_gpu(1), lost=True))])
def test_no_gpu_or_a_lost_one_ends_the_wait_with_its_finding(ctx: Any, cards: tuple[Gpu, ...]) -> None:
    with pytest.raises(NotReady):
        drain.Vigil(ctx).look(sample(*cards))


def unit(name: str, active: str, *, stale: bool = False) -> UnitState:
    return replace(parse_state(name, {"ActiveState": active, "LoadState": "loaded"}), stale=stale)


@pytest.mark.parametrize(
    ("ours", "adopts", "targets"),
    [
        (None, False, ["vllm-glm5.service"]),
        (unit("vllm-kimi.service", "active"), True, ["vllm-glm5.service"]),
        (unit("vllm-kimi.service", "active"), False, ["vllm-glm5.service", "vllm-kimi.service"]),
        (unit("vllm-kimi.service", "active", stale=True), True, ["vllm-glm5.service", "vllm-kimi.service"]),
        (unit("vllm-kimi.service", "failed"), False, ["vllm-glm5.service"]),
    ],
)
def test_what_is_stopped(
    ctx: Any, monkeypatch: pytest.MonkeyPatch, ours: UnitState | None, adopts: bool, targets: list[str]
) -> None:
    units = {"vllm-glm5.service": unit("vllm-glm5.service", "active")} | ({ours.name: ours} if ours else {})
    ctx.facts = types.SimpleNamespace(units=units)
    monkeypatch.setattr(stop, "adoptable", lambda _: adopts)
    assert [state.name for state in stop.targets(ctx)] == targets


# -------------------------------------------------------------------------------------------------------------- inspect


def facts(**more: Any) -> Any:
    base = {
        "gpus": sample(*(gpu(index, 0, name="RTX", bus=f"00000000:{16 + index:02X}:00.0") for index in range(2))),
        "kernel_log": (), "missing": (), "disks": {}, "systemd": 252, "cpus": 2, "memory": 64 * GIB, "kernel": "6.1",
    }  # fmt: skip
    return types.SimpleNamespace(**(base | more))


def test_the_machine_in_one_line() -> None:
    line = inspect.evidence(facts(missing=("kernel log: no",)))
    assert line == "2 × RTX, 96.0 GiB each, driver 580; 2 CPUs, 64.0 GiB RAM; systemd 252, kernel 6.1; 1 fact missing"


def test_xids_of_the_kernel_log_are_found_once_and_placed_by_bus() -> None:
    log = (
        "[1.000] NVRM: Xid (PCI:0000:11:00): 79, pid=1, GPU has fallen off the bus.",
        "[2.000] NVRM: Xid (PCI:0000:11:00): 79, pid=1, GPU has fallen off the bus.",
        "[3.000] NVRM: Xid (PCI:0000:10:00): 13, Graphics Exception",
        "[4.000] Out of memory: Killed process 12 (vllm)",
    )
    found = list(inspect.findings(facts(kernel_log=log, missing=("swap: no",))))
    assert [(event.rule, event.level) for event in found] == [
        ("xid", "warn"),
        ("oom-kill", "warn"),
        ("missing", "warn"),
    ]
    assert found[0].text.startswith("GPU 1: Xid 79")
