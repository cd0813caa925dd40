"""Triage against grep, and the live feed: `python -m tests.benchmarks.triage [--size 1G] [--keep]`.

A log of the given size (by default 1 GB, 8.8 million lines) with the cause in its middle is written to a
temporary folder. In one run, alternating, `grep -cE` of a dozen of the catalogue's patterns and `relaunch diagnose` with the whole
catalogue read it; printed are the medians, the median ratio of the pairs, and the peak memory of the triage process. Then the live feed:
lines in pieces of 64 kB, as a pipe gives them, with `stage` and `failed` asked after every piece; line by line, asked after
every line; and storms of tracebacks.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks.figures import tell

ROOT = Path(__file__).resolve().parents[3]
WORDS = [
    "tensor",
    "block",
    "request",
    "token",
    "queue",
    "batch",
    "prompt",
    "cache",
    "worker",
    "stream",
    "prefix",
    "layer",
    "expert",
    "graph",
]
GREP = (
    "Traceback|No valid attention backend found|CUDA out of memory|No available memory for the cache blocks|"
    "unrecognized arguments|Free memory on device .* is less than|an illegal memory access|NCCL error|"
    "No space left on device|EngineDeadError|died unexpectedly|Fatal Python error"
)
UNITS = {"K": 10**3, "M": 10**6, "G": 10**9}
MEASURE = """
import json, resource, sys, time
before = time.process_time()
from console.triage.command import diagnosis_of
from console.triage.rules import load_rules
rules = load_rules()
rules.matcher
ready = time.process_time()
found = diagnosis_of(sys.argv[1], rules)
done = time.process_time()
print(json.dumps({"start": ready - before, "scan": done - ready, "cause": found.cause and found.cause.line,
    "category": found.category, "lines": found.lines, "rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}))
"""


def serving_lines(count: int, seed: int = 1) -> Iterator[str]:
    """What a server that works says: mostly requests, statistics every so often, some noise."""
    dice = random.Random(seed)
    for number in range(count):
        stamp = f"11-29 {number // 3600 % 24:02}:{number // 60 % 60:02}:{number % 60:02}"
        kind = dice.random()
        if kind < 0.70:
            yield (
                f"(APIServer pid=1) INFO:     10.0.{dice.randrange(256)}.{dice.randrange(256)}:{dice.randrange(65536)} - "
                f'"POST /v1/chat/completions HTTP/1.1" 200 OK'
            )
        elif kind < 0.94:
            text = " ".join(dice.choice(WORDS) for _ in range(12))
            yield f"(EngineCore pid=277) INFO {stamp} [scheduler.py:{dice.randrange(2000)}] Finished request {number}: {text}"
        elif kind < 0.99:
            yield (
                f"(APIServer pid=1) INFO {stamp} [loggers.py:257] Engine 000: Avg prompt throughput: {dice.random() * 9e3:.1f} "
                f"tokens/s, Avg generation throughput: {dice.random() * 900 + 1:.1f} tokens/s, Running: 8 reqs, Waiting: 0 reqs"
            )
        elif kind < 0.999:
            yield '(APIServer pid=1) INFO:     127.0.0.1:43844 - "GET /health HTTP/1.1" 200 OK'
        else:
            yield f"(APIServer pid=1) WARNING {stamp} [protocol.py:1] Error in preprocessing prompt inputs: too long"


def startup_lines() -> Iterator[str]:
    yield "(APIServer pid=1) INFO 11-29 00:00:00 [utils.py:1] vLLM API server version 0.16.0"
    yield "(APIServer pid=1) INFO 11-29 00:00:01 [model.py:1] Resolved architecture: KimiK25ForConditionalGeneration"
    yield "(EngineCore pid=277) INFO 11-29 00:00:02 [core.py:97] Initializing a V1 LLM engine (v0.16.0) with config: model='x'"
    for rank in range(8):
        yield (
            f"(Worker_TP{rank} pid={300 + rank}) WARNING 11-29 00:00:03 [symm_mem.py:67] SymmMemCommunicator: Device "
            "capability 12.0 not supported, communicator is not available."
        )
    for shard in range(120):
        yield f"(Worker_TP0 pid=300) Loading safetensors checkpoint shards: {shard * 100 // 119:3}% Completed | {shard}/119"
    yield "(APIServer pid=1) INFO:     Application startup complete."


def death_lines() -> Iterator[str]:
    for rank in range(8):
        head = f"(Worker_TP{rank} pid={300 + rank}) ERROR 11-29 12:00:00 [multiproc_executor.py:783] "
        yield head + "WorkerProc hit an exception."
        yield head + "Traceback (most recent call last):"
        for frame in range(20):
            yield (
                head
                + f'  File "/opt/vllm/lib/python3.12/site-packages/vllm/v1/worker/w{frame}.py", line 7, in f{frame}'
            )
            yield head + "    return self.forward(batch)"
        yield head + "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
    yield "(EngineCore pid=277) ERROR 11-29 12:00:01 [core.py:718] EngineCore encountered a fatal error."


def write_log(path: Path, size: int) -> int:
    """The number of lines written."""
    mass = [line.encode() for line in serving_lines(60_000)]
    chunk = b"\n".join(mass) + b"\n"
    start = "".join(line + "\n" for line in startup_lines()).encode()
    death = "".join(line + "\n" for line in death_lines()).encode()
    times = max(1, (size - len(start) - len(death)) // len(chunk))
    lines = start.count(b"\n") + death.count(b"\n") + times * len(mass)
    with path.open("wb") as file:
        file.write(start)
        for place in range(times):
            if place == times // 2:
                file.write(death)
            file.write(chunk)
    return lines


def timed(argv: list[str], env: dict[str, str] | None = None) -> tuple[float, float, str]:
    """Seconds of processor time and of wall clock of a child process: on a machine that others use too, the wall clock
    tells about them."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        argv, capture_output=True, text=True, check=False, env={**os.environ, **(env or {})}, cwd=ROOT
    )
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return spent, wall, done.stdout + done.stderr


def against_grep(path: Path, rounds: int) -> None:
    relaunch = [str(Path(sys.executable).parent / "relaunch"), "diagnose", "--json", str(path)]
    greps: list[tuple[float, float, str]] = []
    ours: list[tuple[float, float, str]] = []
    timed(relaunch)  # compiled patterns are kept from the first run on
    for _ in range(rounds):
        greps.append(timed(["grep", "-cE", GREP, str(path)], {"LC_ALL": "C"}))
        ours.append(timed(relaunch))
    cold = timed(relaunch, {"RELAUNCH_NO_CACHE": "1"})
    inside = json.loads(timed([sys.executable, "-c", MEASURE, str(path)])[2].strip().splitlines()[-1])
    for what, at in (("CPU", 0), ("wall", 1)):
        mine, grep = [one[at] for one in ours], [one[at] for one in greps]
        tell(f"  relaunch diagnose against grep -cE of a dozen patterns, {what}", mine, grep, aim="1 or less")
    print(f"    without the cache of patterns   {cold[0]:6.2f} s CPU")
    print(f"    peak RSS {inside['rss'] / 1024:.0f} MiB; start {inside['start']:.2f} s, scan {inside['scan']:.2f} s")
    print(f"    cause in line {inside['cause']}, {inside['category']}, {inside['lines']} lines")


def told(what: str, lines: int, taken: float) -> None:
    print(f"  {what:42} {lines / taken / 1e6:6.2f} million lines/s")


def live(path: Path, limit: int) -> None:
    from console.triage import Reader

    with path.open("rb") as file:
        data = file.read(limit)
    data = data[: data.rfind(b"\n") + 1]
    lines = data.count(b"\n")
    Reader().feed(data[:400_000])
    reader = Reader()
    began = time.process_time()
    for at in range(0, len(data), 65536):
        reader.feed(data[at : at + 65536])
        _ = reader.stage, reader.failed
    told("live, pieces of 64 kB, asked after each", lines, time.process_time() - began)
    by_line("live, line by line, asked after each", data.decode().splitlines()[:1_000_000])


def by_line(what: str, texts: list[str]) -> None:
    from console.triage import Reader

    reader = Reader()
    for text in [*startup_lines(), *death_lines()]:
        reader.feed_line(text)
        _ = reader.stage, reader.failed
    reader = Reader()
    began = time.process_time()
    for text in texts:
        reader.feed_line(text)
        _ = reader.stage, reader.failed
    reader.diagnosis()
    told(what, len(texts), time.process_time() - began)


def storm(copies: int) -> None:
    """Eight ranks that write tracebacks without end: nearly every line belongs to one."""
    from console.triage import Reader

    lines = list(death_lines())
    each = len(lines) // 8
    mixed = [
        line
        for row in zip(*(lines[rank * each : rank * each + each] for rank in range(8)), strict=True)
        for line in row
    ]
    for name, texts in (("one after the other", lines * copies), ("interleaved", mixed * copies)):
        reader = Reader()
        data = ("\n".join(texts) + "\n").encode()
        began = time.process_time()
        reader.feed(data)
        reader.diagnosis()
        told(f"storm of tracebacks, {name}", len(texts), time.process_time() - began)
        by_line("  line by line, asked after each", texts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="1G", help="size of the log: 200M, 1G")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    size = int(float(args.size.rstrip("KMGkmg")) * UNITS.get(args.size[-1].upper(), 1))
    folder = Path(tempfile.mkdtemp(prefix="relaunch-bench-"))
    try:
        path = folder / "log.txt"
        lines = write_log(path, size)
        print(f"triage: {path.stat().st_size / 1e6:.0f} MB, {lines / 1e6:.1f} million lines, cause in the middle")
        against_grep(path, args.rounds)
        live(path, min(size, 150_000_000))
        storm(400)
    finally:
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
