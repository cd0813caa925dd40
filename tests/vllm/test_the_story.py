"""The mission's own story on a real vLLM: an FP8 KV field that starts healthy and dies, and the overlay that serves.

Each start is made once, by a fixture; the tests look at what it left.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from console.events import Changed, Compared, Measured
from console.profile.model import LoadPoint
from console.throughput.parse import parse_result
from console.triage import Reader
from tests.vllm.box import Ran, VllmBox, cpu_backend_dtypes

# a start takes 35 to 55 s on two idle cores, and several times that on busy ones
pytestmark = pytest.mark.timeout(1500)
FP8_CAUSE = "expected scalar type BFloat16 but found Float8_e4m3fn"
CATEGORY = "attention_backend_unsupported_kv_dtype"
SHARDS = 119


@dataclass(frozen=True, slots=True)
class Start:
    """One start of the real server: the run that made it, and the log of that very invocation."""

    ran: Ran
    invocation: str
    log: bytes

    def read(self) -> Reader:
        reader = Reader()
        reader.feed(self.log)
        return reader


def started(box: VllmBox, ran: Ran) -> Start:
    invocation = box.shown("InvocationID")["InvocationID"]
    if not invocation:  # a unit that was stopped keeps none; the journal does
        said = box.machine.ssh(f"journalctl --no-pager -q -o json -u {box.profile.service.unit} _PID=1 | tail -n 1")
        invocation = str(json.loads(said)["INVOCATION_ID"])
    return Start(ran, invocation, box.journal(invocation))


@pytest.fixture(scope="module")
def unpatched(box: VllmBox) -> Start:
    """Policy auto, and the installed TRITON_MLA says that it takes FP8: the files stay as they are."""
    return started(box, box.redeploy())


@pytest.fixture(scope="module")
def patched(box: VllmBox, unpatched: Start, venv: Path) -> Start:
    """The same profile, with what the node's own backend takes: no FP8, so the overlay without the field is served."""
    box.remember_backend(cpu_backend_dtypes(venv))
    return started(box, box.redeploy())


def test_unpatched_it_is_healthy_and_dies_at_its_first_completion(unpatched: Start, box: VllmBox) -> None:
    ran = unpatched.ran
    assert ran.states["launch"] == "done", str(ran)
    assert ran.states["ready"] == "failed", str(ran)
    assert ran.end.code == 8, str(ran)
    assert FP8_CAUSE in ran.end.text, str(ran)
    (cause,) = ran.causes
    assert cause.step == "ready"
    assert FP8_CAUSE in cause.text
    assert (cause.category, cause.fix) == (CATEGORY, "kv-patch")
    log = unpatched.log.decode()
    assert "Using fp8_e4m3 data type to store kv cache" in log
    assert log.index("Application startup complete") < log.index('"GET /health HTTP/1.1" 200') < log.index(FP8_CAUSE)


def test_what_died_is_not_left_starting_again_and_again(unpatched: Start, box: VllmBox) -> None:
    assert box.shown("ActiveState")["ActiveState"] in ("inactive", "failed")
    assert box.machine.ssh("ls /dev/shm").split() == []


def test_the_log_of_both_starts_is_read(unpatched: Start, patched: Start) -> None:
    died = unpatched.read().diagnosis()
    assert (died.outcome, died.category, died.version) == ("failed", CATEGORY, "0.32.0")
    assert died.cause is not None
    assert FP8_CAUSE in died.cause.text
    assert died.cause.process is not None
    assert died.cause.process.startswith("Worker")
    serves = patched.read().diagnosis()
    assert (serves.outcome, serves.stage, serves.version) == ("ready", "serving", "0.32.0")
    assert serves.cause is None
    for read in (died, serves):
        assert read.progress is not None
        assert (read.progress.done, read.progress.total) == (SHARDS, SHARDS)


def test_patched_through_the_overlay_it_serves_and_is_kept(patched: Start, box: VllmBox) -> None:
    ran = patched.ran
    assert ran.end.code == 0, str(ran)
    assert ran.states["patch"] == "done", str(ran)
    assert f"{SHARDS}/{SHARDS} shards loaded" in ran.detail("launch")
    assert "Paris is the capital of France" in ran.detail("ready")
    arguments = box.shown("ExecStart")["ExecStart"]
    assert "/var/lib/relaunch/overlays/" in arguments
    assert "--kv-cache-dtype" not in arguments
    overlay = json.loads(box.machine.ssh("cat /var/lib/relaunch/overlays/*/config.json"))
    plain = json.loads(box.machine.ssh(f"cat {box.profile.model.folder}/config.json"))
    assert overlay["quantization_config"]["kv_cache_scheme"] is None
    assert plain["quantization_config"]["kv_cache_scheme"] == {"dynamic": False, "num_bits": 8, "type": "float"}
    assert box.shown("ActiveState", "UnitFileState") == {"ActiveState": "active", "UnitFileState": "enabled"}


def test_what_bench_serve_wrote_is_what_was_told(patched: Start, box: VllmBox) -> None:
    told = [event for event in patched.ran.events if isinstance(event, Measured)]
    assert [point.concurrency for point in told] == [1, 4]
    for point in told:
        assert (point.completed, point.failed) == ({1: 2, 4: 8}[point.concurrency], 0)
        assert point.output_tokens_per_s is not None
        assert point.total_tokens_per_s is not None
        assert point.total_tokens_per_s > point.output_tokens_per_s > 0
        for spread in (point.ttft_ms, point.tpot_ms, point.itl_ms):
            assert {"mean", "std", "p50", "p90", "p95", "p99"} <= spread.keys()
            assert 0 < spread["p50"] <= spread["p99"]
        place = f"/var/lib/relaunch/jobs/bench-*-c{point.concurrency}-64x32/result.json"
        wanted = LoadPoint(concurrency=point.concurrency, prompts=point.completed, input_tokens=64, output_tokens=32)
        assert parse_result(box.machine.ssh(f"cat {place}"), wanted, time=point.time) == point


def test_the_forecast_of_the_kv_cache_is_what_the_log_says(patched: Start) -> None:
    (tokens,) = [e for e in patched.ran.events if isinstance(e, Compared) and e.what == "kv-cache"]
    assert tokens.error is not None
    assert abs(tokens.error) < 0.03


def test_a_second_run_finds_everything_as_it_should_be(patched: Start, box: VllmBox) -> None:
    before = box.shown("InvocationID", "MainPID")
    ran = box.redeploy()
    assert ran.end.code == 0, str(ran)
    assert set(ran.states.values()) == {"satisfied"}, str(ran)
    assert box.shown("InvocationID", "MainPID") == before


def test_told_to_stop_under_load_it_hangs_and_systemd_ends_it(patched: Start, box: VllmBox, tmp_path: Path) -> None:
    """SIGTERM under load waits for the clients for ever; SIGKILL of the whole cgroup after stop_seconds ends it."""
    service = box.profile.service
    box.machine.put("/usr/local/lib/practice/load.py", Path(__file__).with_name("load.py").read_bytes())
    box.machine.ssh(
        "systemd-run --quiet --collect --unit=load --property=Type=forking "
        f"python3 /usr/local/lib/practice/load.py {service.port} {box.profile.model.served_name}"
    )
    pids = box.machine.ssh(f"systemctl show -p ControlGroup --value {service.unit}").strip()
    had = box.machine.ssh(f"cat /sys/fs/cgroup{pids}/cgroup.procs").split()
    assert len(had) >= 3  # API server, engine, worker
    assert box.machine.ssh("ls /dev/shm").split()
    successor = box.profile.model_copy(
        update={"service": service.model_copy(update={"unit": "vllm-next.service"}), "replaces": (service.unit,)}
    )
    script = tmp_path / "stop.yaml"
    script.write_text("- inspect\n- stop\n- drain\n")
    ran = box.redeploy(successor, script=str(script))
    assert ran.end.code == 0, str(ran)
    assert f"{service.unit} failed (timeout)" in ran.detail("stop"), str(ran)
    assert f"port {service.port}" in ran.detail("stop")
    assert "cgroup empty" in ran.detail("stop")
    assert box.shown("ActiveState", "Result") == {"ActiveState": "failed", "Result": "timeout"}
    assert box.machine.ssh(f"ls -d {' '.join(f'/proc/{pid}' for pid in had)} 2>/dev/null", check=False) == ""
    assert box.machine.ssh(f"ss -Hltn sport = :{service.port}") == ""
    assert box.machine.ssh("ls /dev/shm").split() == []


def test_the_remedy_can_be_applied_by_itself(patched: Start, box: VllmBox) -> None:
    """From the plain files again: it dies, `--fix` takes the remedy that triage names, and the second start serves."""
    box.forget_backend()
    ran = box.redeploy(fix=True)
    assert ran.end.code == 0, str(ran)
    assert [cause.category for cause in ran.causes] == [CATEGORY]
    (fixed,) = [event for event in ran.events if isinstance(event, Changed) and "fix" in event.text]
    assert "bfloat16" in fixed.text
    assert "--kv-cache-dtype" in box.shown("ExecStart")["ExecStart"]
