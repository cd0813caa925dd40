"""Glances for the screens beside main and log: GPUs of every sort, a plan, a failure, a load test. Made up, and fixed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from console.deploy.fix import fix_for
from console.deploy.release import Release
from console.events import (
    CauseFound,
    Changed,
    Downtime,
    Event,
    Found,
    Measured,
    Progressed,
    Remedy,
    RunEnded,
    RunStarted,
    StageReached,
    StepChanged,
)
from console.live import Glance, GpuView, LogView
from console.node.base import LinkState
from console.node.facts import Facts, Paths, UnitState
from console.node.gpu import Gpu, GpuFinding, GpuProcess, GpuSample
from console.profile.model import Profile
from console.state import fold
from console.triage import Diagnosis
from console.triage.diagnosis import Cause, NoiseCount

WALL, MONO = 1_760_000_287.0, 5_000.0
MIB = 1 << 20
UNIT = "vllm-kimi.service"
STEPS = ("inspect", "preflight", "engine", "space", "download", "shards", "patch", "unit", "stop", "drain", "launch", "ready",
         "throughput", "keep")  # fmt: skip

PROFILE = Profile.model_validate(
    {
        "name": "kimi-k2.5-nvfp4",
        "model": {
            "repo": "owner/Kimi", "revision": "0123456789abcdef0123456789abcdef01234567", "folder": "/srv/models/Kimi",
            "served_name": "kimi-k2.5",
        },
        "vllm": {"version": "0.16.0", "venv": "/opt/vllm-0.16.0"},
        "serve": {"tensor_parallel_size": 8, "flags": {"max-model-len": 131072}},
        "service": {"unit": UNIT},
        "replaces": ["vllm-glm5.service"],
        "throughput": {
            "points": [{"concurrency": n, "prompts": 32} for n in (1, 8, 32)],
            "gates": [
                {"concurrency": 1, "min_output_tokens_per_s": 55.0, "tolerance_percent": 10.0},
                {"concurrency": 32, "max_itl_p99_ms": 50.0},
            ],
        },
    }
)  # fmt: skip


def remedy(profile: Profile, fix: str, time: float) -> Remedy:
    """What a failed run tells of its known remedy."""
    edit = fix_for(profile, fix)
    assert edit is not None
    return edit.event(time, applied=False)


def gpu(index: int, used: int | None = 68000, *, mine: int = 67000, other: int = 0, **changes: Any) -> Gpu:
    """A GPU with `used` MiB in use, of which `mine` belong to the service and `other` to someone's notebook."""
    processes = []
    if mine:
        processes.append(GpuProcess(41000 + index, mine * MIB, "root", f"VLLM::Worker_TP{index}", UNIT, 100))
    if other:
        processes.append(GpuProcess(977, other * MIB, "alice", "python3", "user@1000.service", 100))
    values: dict[str, Any] = {
        "index": index, "uuid": f"GPU-4d2c{index}f00", "name": "NVIDIA RTX PRO 6000 Blackwell Server Edition",
        "bus": f"0000:{index + 16:02x}:00.0", "capability": (12, 0), "memory_total": 97887 * MIB,
        "memory_used": None if used is None else used * MIB, "memory_reserved": 638 * MIB, "utilisation": 97, "power": 412.0,
        "power_limit": 600.0, "temperature": 61 + index, "ecc_uncorrected": 0, "remap_pending": False,
        "remap_failed": False, "mig": False, "processes": tuple(processes), "lost": False,
    }  # fmt: skip
    return Gpu(**{**values, **changes})


def gpu_view() -> GpuView:
    """Eight GPUs: six well, one with memory errors and a notebook, one of which nothing is told, one lost."""
    gpus = (
        gpu(0), gpu(1), gpu(2), gpu(3, 80000, other=9000, ecc_uncorrected=3), gpu(4),
        gpu(5, None, mine=0, utilisation=None, power=None, temperature=None, ecc_uncorrected=None, remap_pending=None,
            remap_failed=None, mig=None, power_limit=None, memory_reserved=None),
        gpu(6), gpu(7, None, mine=0, lost=True),
    )  # fmt: skip
    findings = (
        GpuFinding("ecc-uncorrected", 3, "GPU 3: uncorrected memory errors since the driver was loaded (3)",
                   "restart what ran; watch the count"),
        GpuFinding("gpu-lost", 7, "GPU 7: the GPU has fallen off the bus; new CUDA programs can fail on all GPUs until a reboot",
                   "reboot or power-cycle; look for Xid 79, then at power, riser and temperature"),
    )  # fmt: skip
    used = tuple(
        tuple(min(68000, 600 + n * 1500) * MIB if i not in (5, 7) else None for i in range(8)) for n in range(60)
    )
    return GpuView(GpuSample(WALL - 1, "nvml", "595.71.05", "13.1", gpus, findings), MONO - 1, used)


def base(**changes: Any) -> Glance:
    """Connected, nothing done yet."""
    plain = Glance(version=1, node="gpu1", profile=PROFILE, link=LinkState(True, 38.2))
    return replace(plain, **changes)


def empty() -> Glance:
    """Nothing is known."""
    return Glance(version=1, link=LinkState(False, reason=""))


EXPECTED = (("stop", 4.1), ("drain", 2.9), ("launch", 290.0), ("ready", 5.0), ("download", 840.0))

UNIT_DIFF = """\
--- installed
+++ rendered
@@ -9,8 +9,9 @@
 [Service]
 Type=exec
-ExecStart=/opt/vllm-0.33.0/bin/vllm serve /srv/models/GLM-5 --disable-log-requests
+Environment="NCCL_PROTO=LL"
+ExecStart=/opt/vllm-0.16.0/bin/vllm serve /srv/models/Kimi.relaunch --served-model-name kimi-k2.5 --max-model-len 131072
 Restart=on-failure"""

CONFIG_DIFF = """\
--- config.json
+++ config.json
@@ -40,7 +40,4 @@
   "quantization_config": {
-    "kv_cache_scheme": {"num_bits": 8, "type": "float"},
+    "kv_cache_scheme": null,
     "quant_algo": "NVFP4","""


def started(run: str, *, dry: bool = False, at: float = WALL - 60, verb: str = "redeploy") -> RunStarted:
    return RunStarted(time=at, run=run, verb=verb, node="gpu1", profile=PROFILE.name, steps=STEPS, read_only=dry)


def plan_events(*, end: bool = True, refused: bool = False) -> list[Event]:
    """A dry run: three steps satisfied, the rest needed."""
    at = WALL - 40
    events: list[Event] = [started("0143", dry=True)]

    def say(step: str, state: Any, detail: str = "") -> None:
        events.append(
            StepChanged(time=at, step=step, state=state, detail=detail, seconds=0.2 if state == "satisfied" else None)
        )

    def needs(step: str, *changes: tuple[str, str]) -> None:
        say(step, "checking")
        events.extend(Changed(time=at, step=step, text=text, diff=diff) for text, diff in changes)
        say(step, "needed", changes[0][0])

    say("inspect", "satisfied", "8 GPUs, vLLM 0.16.0, systemd 252")
    for rule in ("driver", "compute-capability", "python", "memlock", "port", "shm"):
        events.append(Found(time=at, step="preflight", level="allow", rule=rule, text="as it should be"))
    events.append(Found(time=at, step="preflight", level="warn", rule="p2p", text="P2P between GPU 3 and 7 is disabled (ACS on)",
                        remedy="expect a slower all-reduce, or switch ACS off in the firmware"))  # fmt: skip
    if refused:
        events.append(Found(time=at, step="preflight", level="refuse", rule="disk", text="/srv has 120.0 GB free, 540.1 GB are needed",
                            remedy="name folders that may go under space.may_remove"))  # fmt: skip
        say("preflight", "failed", "1 check refuses: disk")
        events.append(
            RunEnded(
                time=at,
                run="0143",
                code=3,
                text="1 check refuses: disk",
                remedy="name folders that may go under space.may_remove",
            )
        )
        return events
    say("preflight", "satisfied", "14 checks, 1 note")
    say("engine", "satisfied", "already 0.16.0")
    say("space", "satisfied", "1.2 TB free")
    needs("download", ("fetch 119 of 119 files of owner/Kimi, 540.1 GB", ""))
    if not end:
        say("shards", "checking")
        return events
    needs("shards", ("check 119 files (540.1 GB) against the hub's hashes", ""))
    needs(
        "patch",
        (
            "make the overlay /srv/models/Kimi.relaunch with config.json rewritten: TRITON_MLA takes no FP8 cache on sm_120",
            CONFIG_DIFF,
        ),
    )
    needs("unit", ("rewrite /etc/systemd/system/vllm-kimi.service", UNIT_DIFF), ("- --disable-log-requests", ""), ("+ --max-model-len 131072", ""),
          ("~ program: /opt/vllm-0.33.0/bin/vllm -> /opt/vllm-0.16.0/bin/vllm", ""), ("+ NCCL_PROTO=LL", ""))  # fmt: skip
    needs("stop", ("stop vllm-glm5.service, pid 2211, active", ""))
    needs("drain", ("wait until 8 GPUs are idle; vllm-glm5.service holds 512.0 GiB", ""))
    needs("launch", ("start vllm-kimi.service and follow it until it is ready", ""))
    needs("ready", ("wait until kimi-k2.5 answers, and let it generate", ""))
    needs("throughput", ("measure 3 load points: concurrency 1, 8, 32", ""))
    needs("keep", ("release 4 becomes the last good one", ""))
    events.append(
        RunEnded(time=WALL - 30, run="0143", code=0, text="nothing has been changed; needed: download", seconds=4.0)
    )
    return events


def plan() -> Glance:
    return base(run=fold(plan_events()), expected=EXPECTED)


CAUSE_TEXT = (
    "ValueError: No valid attention backend found for cuda with AttentionSelectorConfig(head_size=576, dtype=torch.bfloat16, "
    "kv_cache_dtype=fp8, use_mla=True). Reasons: {TRITON_MLA: [kv_cache_dtype not supported]}"
)
MEANING = "vLLM 0.16 has one MLA backend for sm_120, and it knows a bf16 cache only; the model's config asks for FP8."
REMEDY = "Let the KV patch rewrite the config (kv_cache.policy: bfloat16), or use vLLM 0.18 or newer, where FP8 works."


def failed_events(at: float = WALL - 600) -> list[Event]:
    """A run that failed in launch and was restored."""
    events: list[Event] = [started("0141", at=at)]
    for place, step in enumerate(STEPS[:8]):
        events.append(StepChanged(time=at + place, step=step, state="checking"))
        events.append(
            StepChanged(
                time=at + place + 0.5, step=step, state="satisfied", detail=f"{step} is as it should be", seconds=0.5
            )
        )
    events += [
        Downtime(time=at + 10, state="started"),
        StepChanged(time=at + 10, step="stop", state="running", detail="stop vllm-glm5.service"),
        StepChanged(time=at + 14, step="stop", state="done", detail="cgroup empty, port free", seconds=4.1),
        StepChanged(time=at + 17, step="drain", state="done", detail="8 GPUs at idle level", seconds=2.9),
        StepChanged(time=at + 18, step="launch", state="running", detail="start vllm-kimi.service"),
        StageReached(time=at + 24, stage="weights"),
        Progressed(time=at + 40, step="launch", text="weights", done=57, total=119, unit="shards", eta=40.0),
        CauseFound(time=at + 65, step="launch", text=CAUSE_TEXT, category="kv_cache_dtype", meaning=MEANING, remedy=REMEDY, fix="kv-patch",
                   process="Worker_TP0", ranks=8, line=110),
        StepChanged(time=at + 65, step="launch", state="failed", detail="vllm-kimi.service exited with code 1", seconds=47.0),
        remedy(PROFILE, "kv-patch", at + 65),
        StepChanged(time=at + 65, step="ready", state="skipped"),
        StepChanged(time=at + 65, step="throughput", state="skipped"),
        StepChanged(time=at + 65, step="keep", state="skipped"),
        StepChanged(time=at + 66, step="rollback", state="running", detail="going back to what served before"),
        StepChanged(time=at + 160, step="rollback", state="done", detail="vllm-glm5.service serves again: health 200", seconds=94.0),
        Downtime(time=at + 160, state="ended", seconds=150.0),
        RunEnded(time=at + 160, run="0141", code=11, text="vllm-kimi.service exited with code 1 in stage weights; glm-5 serves again",
                 remedy=REMEDY, seconds=160.0),
    ]  # fmt: skip
    return events


def diagnosis() -> Diagnosis:
    around = (
        "(Worker_TP0 pid=4101) INFO 10-09 08:40:19 [weight_utils.py:410] Time spent downloading weights: 0.4 s",
        "(Worker_TP0 pid=4101) INFO 10-09 08:40:20 [gpu_model_runner.py:2602] Starting to load model /srv/models/Kimi...",
        "(Worker_TP0 pid=4101) ERROR 10-09 08:40:21 [multiproc_executor.py:597] WorkerProc failed to start.",
        f"(Worker_TP0 pid=4101) ERROR 10-09 08:40:21 [multiproc_executor.py:597] {CAUSE_TEXT}",
        "(EngineCore pid=4090) ERROR 10-09 08:40:22 [core.py:718] EngineCore failed to start.",
        "(EngineCore pid=4090) ERROR 10-09 08:40:22 [core.py:718] Traceback (most recent call last):",
        "(APIServer pid=4001) RuntimeError: Engine core initialization failed. See root cause above.",
    )
    return Diagnosis(
        outcome="failed", stage="weights", engine="vllm", version="0.16.0",
        cause=Cause(CAUSE_TEXT, 110, "Worker_TP0", 8, (100, 120), around, 3),
        category="kv_cache_dtype", meaning=MEANING, remedy=REMEDY, fix="kv-patch", certain=True,
        noise=(NoiseCount("wrapper", 96, "a process that waits for the one that failed"), NoiseCount("nccl-info", 32, "NCCL says what it chose")),
        lines=636,
    )  # fmt: skip


def failed() -> Glance:
    log = LogView(unit=UNIT, version=3, lines=636, following=True, seen=MONO - 2, diagnosis=diagnosis())
    return base(run=fold(failed_events()), log=log)


def point(
    streams: int, speed: float | None, ttft: tuple[float, float], itl: tuple[float, float], failed: int = 0
) -> Measured:
    return Measured(
        time=WALL - 20, concurrency=streams, input_tokens=1024, output_tokens=256, completed=32 - failed, failed=failed,
        output_tokens_per_s=speed, total_tokens_per_s=None if speed is None else speed * 5,
        ttft_ms={"p50": ttft[0], "p99": ttft[1]}, tpot_ms={"p50": itl[0]}, itl_ms={"p50": itl[0], "p99": itl[1]},
    )  # fmt: skip


NOW = (
    point(1, 61.3, (712, 830), (16.1, 17.0)),
    point(8, 286.4, (1020, 1900), (27.4, 33.1)),
    point(32, 811.9, (2750, 6100), (38.8, 52.0)),
)
BEFORE = (
    point(1, 60.6, (700, 810), (16.3, 17.4)),
    point(8, 287.6, (1000, 1700), (27.2, 32.0)),
    point(32, 788.3, (2800, 6900), (39.5, 49.0)),
)

GOOD = Release(
    number=3, run="0139", state="good", created=WALL - 86400, profile=PROFILE.name, profile_sha256="0" * 64, unit=UNIT, unit_text="",
    served_name="kimi-k2.5", port=8000, model_folder="/srv/models/Kimi", revision="0" * 40, venv="/opt/vllm-0.16.0", vllm="0.16.0",
    baseline=BEFORE,
)  # fmt: skip


def throughput(*, measured: tuple[Measured, ...] = NOW, good: Release | None = GOOD) -> Glance:
    return base(run=fold([started("0142"), *measured]), good=good)


def facts() -> Facts:
    unit = UnitState(
        name=UNIT, load="loaded", active="active", sub="running", result="success", main_pid=1, invocation="a" * 32, cgroup="/",
        fragment="/etc/systemd/system/" + UNIT, text="", need_reload=False, enabled="enabled", restarts=0,
    )  # fmt: skip
    return Facts(
        host="box", boot_id="b", kernel="6.8", user="root", uid=0,
        paths=Paths("/root", "/etc/systemd/system", "/sys/fs/cgroup", "/dev/shm", "/var/lib/relaunch"), python="3.11.2", systemd=252,
        tools={}, cpus=64, memory=1 << 40, memory_available=None, limits={}, gpus=gpu_view().sample, disks={}, units={UNIT: unit},
        venvs={}, folders={}, listeners=(), shm_free=None, files={}, clock=WALL,
    )  # fmt: skip
