"""The telemetry agent as a process over the real pynvml: against a stand-in NVML library in C, and a stand-in nvidia-smi."""

from __future__ import annotations

import ast
import asyncio
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from console.errors import RelaunchError
from console.node import agent
from console.node.agent.processes import start_ticks
from console.node.facts import facts_source
from console.node.gpu import AGENT_MODULES, Decoder, GpuSample, agent_call, bundled_pynvml, sample_gpus, watch_gpus
from console.node.local import LocalNode
from tests.nvml.build import NO_COMPILER, compiler, library

MIB = 1 << 20
needs_compiler = pytest.mark.skipif(compiler() is None, reason=NO_COMPILER)


@pytest.fixture(scope="session")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nvml")
    library(folder)
    return folder


@pytest.fixture
def gpus(nvml: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Eight GPUs by the stand-in library; `gpus.setenv("NVML_STANDIN", …)` changes the machine."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(nvml))
    monkeypatch.setenv("NVML_STANDIN", "gpus=8")
    return monkeypatch


async def first(node: LocalNode, count: int = 1, interval: float = 0.05) -> list[GpuSample]:
    found: list[GpuSample] = []
    async with watch_gpus(node, interval) as samples:
        async for sample in samples:
            found.append(sample)
            if len(found) == count:
                break
    return found


def ids(sample: GpuSample) -> set[tuple[str, int | None]]:
    return {(found.id, found.gpu) for found in sample.findings}


@needs_compiler
def own_command() -> str:
    return Path("/proc/self/cmdline").read_text().replace("\0", " ").strip()


async def test_eight_gpus(gpus: pytest.MonkeyPatch) -> None:
    me = os.getpid()
    gpus.setenv("NVML_STANDIN", f"gpus=8 held=0:{me}:1024 held=3:{me}:2048 nopower=2")
    sample = (await first(LocalNode()))[0]
    assert (sample.source in ("nvml", "nvml-bundled"), sample.driver, sample.cuda) == (True, "580.95.05", "13.0")
    assert [gpu.index for gpu in sample.gpus] == list(range(8))
    gpu = sample.gpus[0]
    assert (gpu.name, gpu.capability) == ("NVIDIA RTX PRO 6000 Blackwell Server Edition", (12, 0))
    assert (gpu.bus, gpu.uuid) == ("00000000:10:00.0", "GPU-00000000-0000-0000-0000-000000000000")
    assert (gpu.memory_total, gpu.memory_used, gpu.memory_reserved) == (97887 * MIB, 1028 * MIB, 600 * MIB)
    assert (gpu.utilisation, gpu.power, gpu.power_limit, gpu.temperature) == (0, 100.5, 600.0, 40)
    assert (gpu.ecc_uncorrected, gpu.remap_pending, gpu.remap_failed, gpu.mig, gpu.lost) == (
        0,
        False,
        False,
        False,
        False,
    )
    process = gpu.processes[0]
    assert (process.pid, process.memory) == (me, 1024 * MIB)
    assert process.command is not None
    assert process.command == own_command()[:200]
    assert process.started == start_ticks(me)
    assert sample.gpus[3].processes[0].memory == 2048 * MIB
    assert sample.gpus[2].power is None
    assert ids(sample) == set()


@needs_compiler
async def test_troubles_of_single_gpus(gpus: pytest.MonkeyPatch) -> None:
    gpus.setenv("NVML_STANDIN", "gpus=8 lost=5 mig=3 ecc=2:4 remap=1 xid=1:79")
    sample = (await first(LocalNode()))[0]
    assert [gpu.index for gpu in sample.gpus if gpu.lost] == [5]
    assert (sample.gpus[5].memory_used, sample.gpus[5].name) == (None, None)
    assert (sample.gpus[3].mig, sample.gpus[3].utilisation) == (True, None)
    assert sample.gpus[2].ecc_uncorrected == 4
    assert ids(sample) == {("gpu-lost", 5), ("mig", 3), ("ecc-uncorrected", 2), ("remap-pending", 1), ("xid", 1)}
    assert "Xid 79" in next(found.text for found in sample.findings if found.id == "xid")


@needs_compiler
async def test_a_gpu_that_falls_off_while_watched(gpus: pytest.MonkeyPatch) -> None:
    gpus.setenv("NVML_STANDIN", "gpus=8 falls=6:3")
    samples = await first(LocalNode(), 4)
    assert [sample.gpus[6].lost for sample in samples][0::3] == [False, True]
    assert samples[-1].gpus[6].memory_used is None
    assert samples[-1].gpus[7].memory_used == 4 * MIB


@needs_compiler
@pytest.mark.parametrize(
    ("machine", "id"),
    [("mismatch", "driver-mismatch"), ("nodriver", "driver-not-loaded"), ("gpus=0", "no-devices")],
)
async def test_troubles_of_the_whole_machine(gpus: pytest.MonkeyPatch, machine: str, id: str) -> None:
    gpus.setenv("NVML_STANDIN", machine)
    sample = (await first(LocalNode()))[0]
    assert sample.gpus == ()
    assert ids(sample) == {(id, None)}
    assert sample.findings[0].remedy


@needs_compiler
async def test_unified_memory_is_unknown_and_not_zero(gpus: pytest.MonkeyPatch) -> None:
    gpus.setenv("NVML_STANDIN", "gpus=1 unified")
    sample = (await first(LocalNode()))[0]
    assert (sample.gpus[0].memory_total, sample.gpus[0].memory_used) == (None, None)
    assert ids(sample) == {("unified-memory", 0)}


@needs_compiler
async def test_a_driver_without_the_second_memory_call_counts_the_reserve_as_used(gpus: pytest.MonkeyPatch) -> None:
    gpus.setenv("NVML_STANDIN", "gpus=1 old")
    gpu = (await first(LocalNode()))[0].gpus[0]
    assert (gpu.memory_used, gpu.memory_reserved) == (604 * MIB, None)


@needs_compiler
async def test_one_sample_by_one_exec(gpus: pytest.MonkeyPatch) -> None:
    sample = await sample_gpus(LocalNode())
    assert len(sample.gpus) == 8


@needs_compiler
def test_the_agent_ends_when_its_stdin_closes(gpus: pytest.MonkeyPatch) -> None:
    argv, stdin = agent_call(0.05)
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(stdin)
    process.stdin.flush()
    assert process.stdout.readline().startswith(b'{"head"')
    process.stdin.close()
    assert process.wait(timeout=30) == 0
    process.stdout.close()


@needs_compiler
def test_the_agent_ends_while_the_driver_hangs(gpus: pytest.MonkeyPatch) -> None:
    gpus.setenv("NVML_STANDIN", "gpus=1 hang")
    argv, stdin = agent_call(0.05)
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert process.stdin is not None
    process.stdin.write(stdin)
    process.stdin.close()
    assert process.wait(timeout=30) == 0


# ------------------------------------------------------------------------------------------------------- nvidia-smi

FAKE_SMI = f"""#!{sys.executable}
import os, sys, time
asked = sys.argv[1]
with open(os.environ["SMI_CALLS"], "a") as calls:
    calls.write(" ".join(sys.argv[1:]) + "\\n")
if asked.startswith("--query-compute-apps"):
    print("gpu_uuid, pid, used_gpu_memory [MiB]\\nGPU-1, %d, 512 MiB" % os.getppid())
    sys.exit()
fields = asked.partition("=")[2].split(",")
if "memory.reserved" in fields:
    print('Field "memory.reserved" is not a valid field to query.\\n')
    sys.exit(2)
units = {{"memory.total": " [MiB]", "memory.used": " [MiB]"}}
def rows(turn):
    for index in (0, 1):
        known = {{"index": index, "uuid": "GPU-%d" % index, "name": "RTX", "memory.total": "1000 MiB", "count": 2,
                 "memory.used": "%d MiB" % (10 * index + turn), "driver_version": "535.1"}}
        print(", ".join(str(known.get(field, "[N/A]")) for field in fields), flush=True)
print(", ".join(field + units.get(field, "") for field in fields), flush=True)
for turn in range(int(os.environ.get("SMI_TURNS", "1000")) if "-lms" in sys.argv else 1):
    rows(turn)
    if "-lms" in sys.argv:
        time.sleep(0.02)
"""


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with nvidia-smi and without an NVML library; the file of its calls."""
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(FAKE_SMI)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("SMI_CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("RELAUNCH_PRACTICE_ROOT", str(tmp_path))  # a practice node never looks for a real library
    return tmp_path / "calls"


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines()


async def test_one_long_lived_nvidia_smi_where_there_is_no_nvml(smi: Path) -> None:
    samples = await first(LocalNode(), 5)
    assert {sample.source for sample in samples} == {"nvidia-smi"}
    assert [sample.gpus[1].memory_used for sample in samples] == [(10 + turn) * MIB for turn in range(5)]
    assert samples[0].driver == "535.1"
    process = samples[0].gpus[1].processes[0]
    assert process.memory == 512 * MIB
    assert process.owner is not None
    calls = lines_of(smi)
    loops = [call for call in calls if "-lms" in call]
    assert len(loops) == 2, "one that was refused for a field it does not know, one that runs on"
    assert len([call for call in calls if "compute-apps" in call]) == 1


async def test_one_sample_by_nvidia_smi(smi: Path) -> None:
    sample = await sample_gpus(LocalNode())
    assert [gpu.memory_used for gpu in sample.gpus] == [0, 10 * MIB]


async def test_nvidia_smi_that_ends_tells_why(smi: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi.parent.joinpath("bin", "nvidia-smi").write_text("#!/bin/sh\necho No devices were found\nexit 6\n")
    sample = (await first(LocalNode()))[0]
    assert ids(sample) == {("no-devices", None)}


@pytest.mark.skipif(os.path.exists("/usr/bin/nvidia-smi"), reason="this machine has an nvidia-smi of its own")
async def test_no_driver_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAUNCH_PRACTICE_ROOT", str(tmp_path))
    assert ids((await first(LocalNode()))[0]) == {("no-driver", None)}


# ---------------------------------------------------------------------------------------------------------- decoder

HEAD = (
    '{"head":{"source":"nvml","driver":"1","cuda":null,"gpus":[{"index":0,"total":100}],"who":{},"findings":[]}}',
    '{"t":1.5,"g":[[40,null,7,null,null,[[5,null]]]]}',
)


def test_decoder_keeps_the_head() -> None:
    decoder = Decoder()
    assert decoder.feed(HEAD[0]) is None
    for _ in range(2):
        sample = decoder.feed(HEAD[1])
        assert sample is not None
        assert (sample.gpus[0].memory_used, sample.gpus[0].memory_total, sample.gpus[0].processes[0].pid) == (
            40,
            100,
            5,
        )


def test_decoder_says_that_the_driver_hangs_and_keeps_the_last_figures() -> None:
    decoder = Decoder()
    decoder.feed(HEAD[0])
    decoder.feed(HEAD[1])
    sample = decoder.feed('{"t":30.0,"wedged":1}')
    assert sample is not None
    assert (sample.time, sample.gpus[0].memory_used) == (30.0, 40)
    assert ids(sample) == {("smi-wedged", None)}


@pytest.mark.parametrize("line", ["", "{", "[]", '{"t":1,"g":[[1]]}', "Traceback (most recent call last):"])
def test_decoder_refuses_what_is_no_line_of_the_agent(line: str) -> None:
    with pytest.raises(RelaunchError):
        Decoder().feed(line)


# --------------------------------------------------------------------------------------------------- what is shipped


@pytest.mark.parametrize("name", [*AGENT_MODULES, "telemetry", "telemetry_once"])
def test_agent_is_python_3_6(name: str) -> None:
    ast.parse(agent.source(name), feature_version=(3, 6))


def test_facts_program_is_python_3_6() -> None:
    ast.parse(facts_source(), feature_version=(3, 6))


def test_bundled_pynvml_is_there_and_small() -> None:
    assert 20_000 < len(bundled_pynvml()) < 150_000


async def test_watching_needs_nothing_after_its_end(smi: Path) -> None:
    """The helper and the nvidia-smi it started are gone when the context is left."""
    async with watch_gpus(LocalNode(), 0.05) as samples:
        await anext(samples)
    deadline = asyncio.get_running_loop().time() + 30
    while "-lms" in " ".join(_commands(str(smi.parent))):
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.05)


def _commands(mark: str) -> Iterator[str]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if mark in text:
            yield text
