"""CPU on the node per telemetry sample: the agent against one process per query, as `nvidia-smi` from a loop is.

Three figures, each CPU time (user and system) per sample of eight GPUs, measured by the kernel's own accounts:

* the agent over NVML, between two of its samples, so without its start;
* one small C program per query over the same library: the least that any process per query can cost, since it neither
  talks to a driver nor does what nvidia-smi does besides;
* the real `nvidia-smi`, where this machine has one; then the agent reads the same real GPUs.

Where there is no NVIDIA driver, NVML is the stand-in of tests/nvml, whose calls cost nothing: the ratio to the C program is
then an upper bound of the true one. A real nvidia-smi opens the driver and every GPU anew each time (netdata#14522: 0.5 s and
more on machines with several GPUs), which no stand-in can show.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from console.node.gpu import agent_call
from tests.benchmarks.figures import tell
from tests.nvml.build import NO_COMPILER, compiler, library, query_program

SAMPLES = 200
INTERVAL = 0.02
ROUNDS = 5


def agent_milliseconds(environment: dict[str, str]) -> float:
    """CPU per sample of a running agent."""
    argv, stdin = agent_call(INTERVAL, python=sys.executable)
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(stdin)
        process.stdin.flush()
        lines = iter(process.stdout.readline, b"")
        for _ in range(10):
            next(lines)
        before = cpu_nanoseconds(process.pid)
        for _ in range(SAMPLES):
            next(lines)
        return (cpu_nanoseconds(process.pid) - before) / SAMPLES / 1e6
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait()


def cpu_nanoseconds(pid: int) -> int:
    """Time on a CPU of all threads (/proc/PID/task/*/schedstat, first field)."""
    return sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat"))


def process_milliseconds(argv: Sequence[str], environment: dict[str, str], times: int) -> float:
    """CPU per run of a process that ends, from fork to exit."""
    total = 0.0
    for _ in range(times):
        pid = os.posix_spawn(
            argv[0], list(argv), environment, file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
        )
        _, status, used = os.wait4(pid, 0)
        if status:
            raise SystemExit(f"{argv[0]} ended with {status}")
        total += used.ru_utime + used.ru_stime
    return total / times * 1000


def main() -> None:
    if compiler() is None:
        print(NO_COMPILER)
        return
    held = " ".join(f"held={gpu}:{os.getpid()}:88000" for gpu in range(8))
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        library(folder)
        query = str(query_program(folder))
        environment = os.environ | {"LD_LIBRARY_PATH": place, "NVML_STANDIN": f"gpus=8 {held}"}
        ours = [agent_milliseconds(environment) for _ in range(ROUNDS)]
        theirs = [process_milliseconds([query], environment, 50) for _ in range(ROUNDS)]
        what = "one sample of 8 stand-in GPUs, agent against the smallest process per query"
        tell(what, ours, theirs, unit="ms CPU")
        least = 20 * statistics.median(ours)
        print(f"the aim, 1/20 of an nvidia-smi query, holds where such a query takes {least:.1f} ms of CPU or more")
    real = shutil.which("nvidia-smi")
    if real is None:
        print("no nvidia-smi on this machine: the ratio to a real query was not measured")
        return
    fields = "index,name,memory.total,memory.used,utilization.gpu,power.draw,temperature.gpu"
    argv = [real, f"--query-gpu={fields}", "--format=csv"]
    ours = [agent_milliseconds(dict(os.environ)) for _ in range(ROUNDS)]
    theirs = [process_milliseconds(argv, dict(os.environ), 5) for _ in range(ROUNDS)]
    tell("one sample of the real GPUs, agent against nvidia-smi", ours, theirs, unit="ms CPU", aim="0.05 or less")


if __name__ == "__main__":
    main()
