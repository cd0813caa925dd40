"""Glances for the screens' tests: a box of eight GPUs in the states an operator meets."""

from __future__ import annotations

from dataclasses import replace

from console import state
from console.deploy.steps import ORDER
from console.events import (
    CauseFound,
    Changed,
    Downtime,
    Event,
    Found,
    Noted,
    Progressed,
    RunEnded,
    RunStarted,
    StepChanged,
)
from console.live import Glance, GpuView, LogView
from console.node.base import LinkState
from console.node.gpudata import Gpu, GpuFinding, GpuProcess, GpuSample, blank_gpu
from console.profile.load import find_profile, profile_folders
from console.profile.model import Profile
from console.triage import Diagnosis, LoadProgress
from tests.screens.conftest import NOW
from tests.screens.other_samples import remedy

GIB = 2**30
TOTAL = int(95.6 * GIB)
RAN = 214.0
"""Seconds that the run in these glances has lasted."""
T0 = NOW.wall - RAN
EXPECTED = (("download", 812.0), ("shards", 41.7), ("stop", 4.1), ("drain", 2.9), ("launch", 292.0), ("ready", 11.0))


def profile() -> Profile:
    return find_profile("kimi-k2.5-nvfp4", profile_folders([]))


def gpu(index: int, gib: float, *, unit: str = "vllm-kimi.service", rank: bool = True, busy: int = 97) -> Gpu:
    command = f"VLLM::Worker_TP{index}" if rank else "python serve.py"
    used = int(gib * GIB)
    process = GpuProcess(4000 + index, used, "root", command, unit, 100)
    return replace(
        blank_gpu(index),
        name="NVIDIA RTX PRO 6000 Blackwell Server Edition",
        capability=(12, 0),
        memory_total=TOTAL,
        memory_used=used,
        utilisation=busy,
        power=140.0 + index,
        temperature=39 + index % 4,
        processes=(process,) if gib > 1 else (),
    )


def gpus(
    levels: list[float],
    *,
    seen: float = NOW.mono - 0.4,
    findings: tuple[GpuFinding, ...] = (),
    unit: str = "vllm-kimi.service",
    rank: bool = True,
) -> GpuView:
    sample = GpuSample(
        NOW.wall,
        "nvml",
        "595.71",
        "13.0",
        tuple(gpu(i, g, unit=unit, rank=rank) for i, g in enumerate(levels)),
        findings,
    )
    history = tuple(tuple(int(g * GIB * step / 12) for g in levels) for step in range(1, 13))
    return GpuView(sample, seen, history)


def run(*events: Event, steps: tuple[str, ...] = ORDER, verb: str = "redeploy") -> state.Snapshot:
    began = RunStarted(time=T0, run="0142", verb=verb, node="gpu1", profile="kimi-k2.5-nvfp4", steps=steps)
    return state.fold((began, *events))


EVIDENCE = {
    "inspect": ("satisfied", "8 GPUs, vLLM 0.16.0, systemd 255", 1.2),
    "preflight": ("satisfied", "14 checks, 1 note", 3.0),
    "engine": ("satisfied", "already 0.16.0 in /opt/vllm-0.16.0", None),
    "space": ("satisfied", "1.2 TB free", None),
    "download": ("satisfied", "119/119 files, 540.1 GB", None),
    "shards": ("done", "119/119 shards, 540.1 GB, sha256 match", 41.7),
    "patch": ("done", "overlay: KV fp8 → bf16, 1 file rewritten", 0.2),
    "unit": ("done", "vllm-kimi.service, 3 lines changed", 0.3),
    "stop": ("done", "cgroup empty, port 8000 free", 4.1),
    "drain": ("done", "8 GPUs at idle level, 612 MiB at most", 2.9),
}


def done(*names: str) -> list[Event]:
    return [
        StepChanged(
            time=T0 + 1, step=name, state=EVIDENCE[name][0], detail=EVIDENCE[name][1], seconds=EVIDENCE[name][2]
        )  # type: ignore[arg-type]
        for name in names
    ]


def base() -> Glance:
    return Glance(
        version=3,
        node="gpu1",
        profile=profile(),
        link=LinkState(True, 38.0),
        gpus=gpus([0.6] * 8, rank=False),
        log=LogView("vllm-kimi.service", 1, 0, True),
        expected=EXPECTED,
    )


def idle() -> Glance:
    """The old model serves, nothing runs."""
    return replace(base(), gpus=gpus([82.1] * 8, unit="vllm-glm5.service", rank=False))


def loading() -> Glance:
    """The new model loads; GPU 3 is behind."""
    events = [
        *done(*EVIDENCE),
        Downtime(time=NOW.wall - 161, state="started"),
        StepChanged(time=NOW.wall - 151, step="launch", state="running", detail="start vllm-kimi.service"),
        Progressed(time=NOW.wall, step="launch", text="weights", done=57, total=119, unit="shards", eta=140),
    ]
    diagnosis = Diagnosis(
        outcome="unfinished", stage="model_loading", engine="vllm", version="0.16.0", cause=None, category=None, meaning="",
        remedy="", fix=None, certain=True, noise=(), lines=128, progress=LoadProgress(57, 119, None, 0, 8),
    )  # fmt: skip
    levels = [68.1, 68.0, 68.1, 49.7, 67.9, 68.0, 68.1, 68.0]
    return replace(
        base(),
        gpus=gpus(levels),
        run=run(*events),
        running=True,
        log=replace(base().log, diagnosis=diagnosis, lines=128),
    )


CAUSE = CauseFound(
    time=NOW.wall - 20,
    step="launch",
    text="ValueError: No valid attention backend found for cuda with AttentionSelectorConfig(head_size=576, kv_cache_dtype=fp8)."
    " Reasons: {TRITON_MLA: [kv_cache_dtype not supported], FLASHMLA: [compute capability not supported]}.",
    category="attention_backend_unsupported_kv_dtype",
    meaning="vLLM 0.16 has one MLA backend for sm_120, and it knows bf16 only; the model's config asks for an FP8 KV cache.",
    remedy="Take the FP8 scheme out of the model's config (the KV patch), or use vLLM 0.18 or newer, where FP8 works.",
    fix="kv-patch",
    process="Worker_TP0",
    ranks=8,
    line=110,
)


def failed(*, over: bool = True) -> Glance:
    """The launch failed and the old model was restored, or with `over` False is about to be."""
    events = [
        *done(*EVIDENCE),
        Downtime(time=NOW.wall - 100, state="started"),
        StepChanged(time=NOW.wall - 90, step="launch", state="running"),
        CAUSE,
        remedy(profile(), CAUSE.fix, NOW.wall - 43),
        StepChanged(
            time=NOW.wall - 43,
            step="launch",
            state="failed",
            detail="no attention backend takes an FP8 KV cache",
            seconds=47.0,
        ),
        *[StepChanged(time=NOW.wall - 43, step=name, state="skipped") for name in ("ready", "throughput", "keep")],
        StepChanged(time=NOW.wall - 42, step="rollback", state="running", detail="going back to what served before"),
    ]
    if not over:
        return replace(
            base(), gpus=gpus([78.2] * 8, unit="vllm-glm5.service", rank=False), run=run(*events), running=True
        )
    events += [
        StepChanged(
            time=NOW.wall - 20,
            step="rollback",
            state="done",
            detail="vllm-glm5.service serves again: health 200",
            seconds=22.0,
        ),
        Downtime(time=NOW.wall - 20, state="ended", seconds=80.0),
        RunEnded(
            time=NOW.wall - 19, run="0142", code=11, text="launch failed; vllm-glm5.service serves again", seconds=195.0
        ),
    ]
    return replace(base(), gpus=gpus([78.2] * 8, unit="vllm-glm5.service", rank=False), run=run(*events))


def restoring() -> Glance:
    """The launch failed, the cause is known, the way back is still taken."""
    return failed(over=False)


def finished() -> Glance:
    """Done: the new model serves and is kept."""
    events: list[Event] = [
        *done(*EVIDENCE),
        Found(
            time=T0,
            step="preflight",
            level="warn",
            rule="p2p",
            text="P2P between GPU 3 and 7 is disabled (ACS on)",
            remedy="expect a slower all-reduce",
        ),
        Changed(
            time=T0,
            step="unit",
            text="vllm-kimi.service",
            diff="--- a\n+++ b\n-  --disable-log-requests\n+  --max-model-len 262144",
        ),
        StepChanged(
            time=NOW.wall - 60,
            step="launch",
            state="done",
            detail="serves after 4:52, TRITON_MLA, 17.2 GiB of KV cache",
            seconds=292.0,
        ),
        StepChanged(
            time=NOW.wall - 50,
            step="ready",
            state="done",
            detail="health, identity, port, 3 of 3 prompts make sense",
            seconds=11.0,
        ),
        Downtime(time=NOW.wall - 50, state="ended", seconds=311.0),
        StepChanged(
            time=NOW.wall - 10, step="throughput", state="done", detail="61.3 tok/s at 1 stream, gate 55", seconds=40.0
        ),
        StepChanged(time=NOW.wall - 9, step="keep", state="done", detail="release 7 is last good", seconds=0.4),
        Noted(time=NOW.wall - 9, text="vllm-glm5.service stays installed and stopped"),
        RunEnded(time=NOW.wall - 8, run="0142", code=0, text="vllm-kimi.service serves Kimi-K2.5", seconds=206.0),
    ]
    return replace(base(), gpus=gpus([88.8] * 8), run=run(*events))


def stale() -> Glance:
    """The link is lost while loading; what is shown is old."""
    seen = NOW.mono - 74
    return replace(
        loading(), link=LinkState(False, None, "no answer from gpu1 for 15 s"), gpus=replace(loading().gpus, seen=seen)
    )


def unknown() -> Glance:
    """Connected, and the driver answers nothing: GPUs unknown, one lost, one with ECC errors."""
    known = [gpu(index, 78.0) for index in range(8)]
    known[2] = blank_gpu(2)
    known[5] = blank_gpu(5, lost=True)
    found = (
        GpuFinding(
            "gpu-lost",
            5,
            "the GPU has fallen off the bus; new CUDA programs can fail on all GPUs until a reboot",
            "reboot",
        ),
        GpuFinding("ecc-uncorrected", 6, "uncorrected memory errors since the driver was loaded", "watch the count"),
        GpuFinding("xid", 5, "the driver reported Xid 79: the GPU has fallen off the bus", "reboot"),
    )
    sample = GpuSample(NOW.wall, "nvidia-smi", None, None, tuple(known), found)
    return replace(base(), gpus=GpuView(sample, NOW.mono - 0.5))


LOG = """\
INFO 11-29 16:57:41 [core.py:98] Initializing a V1 LLM engine (v0.16.0) with config: model='/srv/models/Kimi-K2.5-NVFP4'
(Worker_TP0 pid=4000) INFO 11-29 16:57:49 [parallel_state.py:1203] world_size=8 rank=0 backend=nccl
(Worker_TP0 pid=4000) INFO 11-29 16:57:52 [cuda.py:315] Using TRITON_MLA attention backend
(Worker_TP0 pid=4000) WARNING 11-29 16:57:52 [symm_mem.py:58] SymmMemCommunicator: Device capability 12.0 not supported
(Worker_TP0 pid=4000) Loading safetensors checkpoint shards:  48% Completed | 57/119 [01:12<01:19,  1.27s/it]
"""
