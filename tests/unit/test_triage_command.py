"""`relaunch diagnose` and `relaunch catalogue check` as processes: output, exit codes, what is loaded, newest-first logs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from console.triage import Reader, load_rules
from console.triage.command import diagnosis_of
from console.triage.order import newest_first
from console.triage.page import answer, fix_words

ROOT = Path(__file__).resolve().parents[2]
FAILED = """\
(APIServer pid=10) INFO 11-01 08:00:01 [utils.py:1] vLLM API server version 0.16.0
(Worker_TP0 pid=30) INFO 11-01 08:00:09 [x.py:1] Starting to load model /m...
(Worker_TP3 pid=33) ERROR 11-01 08:00:10 [x.py:1] Traceback (most recent call last):
(Worker_TP3 pid=33) ERROR 11-01 08:00:10 [x.py:1]   File "/v/gpu_worker.py", line 292, in load_model
(Worker_TP3 pid=33) ERROR 11-01 08:00:10 [x.py:1] OSError: [Errno 28] No space left on device
(APIServer pid=10) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""
READY = "(APIServer pid=1) INFO:     Application startup complete.\n"


def diagnose(*args: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "console.triage", *args],
        input=stdin,
        capture_output=True,
        cwd=ROOT,
        timeout=60,
        check=False,
    )


def test_failed_log_as_json_from_a_file_and_from_stdin(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(FAILED, encoding="utf-8")
    for done in (diagnose(str(log), "--json"), diagnose("-", "--json", stdin=FAILED.encode())):
        assert done.returncode == 8
        assert done.stderr == b""
        told = json.loads(done.stdout)
        assert told["outcome"] == "failed"
        assert (told["engine"], told["version"], told["category"]) == ("vllm", "0.16.0", "disk_full")
        assert told["cause"]["line"] == 5
        assert told["cause"]["text"] == "OSError: [Errno 28] No space left on device"
        assert told["cause"]["only_rank"] == 3
        assert told["lines"] == 6
        first, last = told["cause"]["context"]
        assert first <= 5 <= last


def test_answer_for_people_is_short_and_begins_with_it(tmp_path: Path) -> None:
    done = diagnose(stdin=FAILED.encode())
    assert done.returncode == 8
    lines = done.stdout.decode().splitlines()
    assert lines[0].startswith("FAILED in stage model_loading")
    assert len(lines) <= 24
    assert any("rank 3 only" in line for line in lines)
    assert any(line.strip().startswith("> OSError: [Errno 28]") for line in lines)


@pytest.mark.parametrize(
    ("data", "code"), [(READY.encode(), 0), (FAILED.encode(), 8), (b"", 2), (b"\n\n", 2), (b"nothing of a server\n", 8)]
)
def test_exit_codes(data: bytes, code: int) -> None:
    assert diagnose("--json", stdin=data).returncode == code


def test_unusable_input_is_told_on_stderr(tmp_path: Path) -> None:
    for args in ([str(tmp_path / "none.log")], [str(tmp_path)], ["--rules", str(tmp_path / "none.yaml"), "-"]):
        done = diagnose(*args)
        assert done.returncode == 2
        assert done.stdout == b""
        assert done.stderr


def test_catalogue_check(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text("noise:\n  - {id: a, match: abc, why: W., source: us, example: abc}\n", encoding="utf-8")
    bad.write_text("noise:\n  - {id: a, match: abc, why: W., example: abc}\n", encoding="utf-8")
    done = diagnose("catalogue", "check", str(good))
    assert done.returncode == 0
    assert b"sound" in done.stdout
    done = diagnose("catalogue", "check", str(bad))
    assert done.returncode == 2
    assert f"{bad}:2:5: noise[0].source: is needed".encode() in done.stdout


def test_diagnose_loads_neither_screen_nor_network() -> None:
    code = (
        "import sys, argparse; from console.triage import command; p = argparse.ArgumentParser(); command.add_arguments(p); "
        "early = sorted(set(sys.modules) & {'yaml', 'hyperscan', 'console.triage.reader'}); command.diagnose(sys.argv[1]); "
        "late = sorted(set(sys.modules) & {'textual', 'asyncssh', 'aiohttp', 'huggingface_hub', 'pydantic', 'asyncio'}); "
        "print(early, late)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "/dev/null"], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert done.stdout.splitlines()[-1] == "[] []"


def test_newest_line_first(tmp_path: Path) -> None:
    lines = [f"2026-11-29T10:00:{place:02}.5Z {line}" for place, line in enumerate(FAILED.splitlines())]
    log = tmp_path / "cloud.log"
    log.write_text("\n".join(reversed(lines)) + "\n", encoding="utf-8")
    assert newest_first(log.read_bytes())
    assert not newest_first(("\n".join(lines) + "\n").encode())
    assert not newest_first(b"no stamps\n" * 9)
    told = diagnosis_of(str(log), load_rules())
    assert told.cause is not None
    assert (told.category, told.cause.line) == ("disk_full", 2)
    assert told.cause.around[told.cause.at] == told.cause.text
    done = diagnose("--json", stdin=log.read_bytes())
    assert json.loads(done.stdout)["cause"]["line"] == 2


def test_last_launch_of_a_file_is_judged() -> None:
    second = FAILED.replace("pid=10", "pid=110").splitlines()[0] + "\n" + READY
    reader = Reader()
    reader.feed((FAILED + second).encode())
    found = reader.diagnosis()
    assert (found.outcome, found.launches, found.cause) == ("ready", 2, None)
    reader.feed(FAILED.replace("pid=10", "pid=210").encode())
    found = reader.diagnosis()
    assert (found.outcome, found.launches, found.category) == ("failed", 3, "disk_full")
    assert found.cause is not None
    assert found.cause.line == 6 + 2 + 5


def test_progress_and_ranks() -> None:
    reader = Reader()
    reader.feed(b"(Worker pid=30) world_size=2 rank=0 local_rank=0 distributed_init_method=x backend=nccl\n")
    reader.feed(
        b"(Worker_TP0 pid=30) INFO 11-01 08:00:09 [x.py:1] Filesystem type for checkpoints: ZFS. Checkpoint size: 100.00 GiB.\n"
    )
    reader.feed(b"(Worker_TP0 pid=30) \rLoading safetensors checkpoint shards:  50% Completed | 10/20 [00:01<00:02]\r")
    reader.feed(b"(Worker_TP1 pid=31) INFO 11-01 08:00:09 [x.py:1] Starting to load model /m...\n")
    progress = reader.progress
    assert progress is not None
    assert (progress.done, progress.total, progress.done_bytes, progress.ranks) == (10, 20, 50 * 2**30, 2)
    assert [(rank.process, rank.rank, rank.stage) for rank in reader.ranks] == [
        ("Worker_TP0", 0, "weights_loading"),
        ("Worker_TP1", 1, "model_loading"),
    ]


def test_escape_sequences_and_secrets_do_not_reach_the_answer() -> None:
    reader = Reader()
    reader.feed(b"RuntimeError: \x1b]0;owned\x07\x9b31m token hf_abcdefghijklmnop was \x1b[31mrefused\n")
    said = answer(reader.diagnosis())
    assert "\x1b" not in said
    assert "\x9b" not in said
    assert "hf_abcdefghijklmnop" not in said


def test_fix_in_words() -> None:
    assert fix_words("drop-flag:--swap-space") == "drop the flag --swap-space"
    assert fix_words("max-model-len:1000") == "set --max-model-len 1000"
