"""The stand-in nvidia-smi, orphan and uv: what they print is read by the console's own readers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from console.node.smi import read_smi
from console.rehearsal import gpu_state, standins
from console.rehearsal.bare_node import programs

STANDINS = Path(standins.__file__).parent


def environment(root: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(root),
        "RELAUNCH_PRACTICE_ROOT": str(root),
        "RELAUNCH_PRACTICE_PACE": '{"install": 0}',
    }


async def run(root: Path, name: str, *argv: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-S", str(STANDINS / f"{name}.py"), *argv,
        env=environment(root), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


@contextlib.asynccontextmanager
async def orphan(root: Path, *argv: str) -> AsyncIterator[int]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-S", str(STANDINS / "orphan.py"), *argv,
        env=environment(root), stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert await asyncio.wait_for(process.stdout.readline(), 30) == b"holding\n"
    try:
        yield process.pid
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
        await process.wait()


QUERY = "index,uuid,name,memory.total,memory.used,compute_cap,utilization.gpu,power.draw,power.limit,temperature.gpu,driver_version"


async def test_eight_idle_gpus(tmp_path: Path) -> None:
    code, out, _ = await run(tmp_path, "nvidia_smi", f"--query-gpu={QUERY}", "--format=csv")
    assert code == 0
    sample = read_smi(out, 0)
    assert [gpu.index for gpu in sample.gpus] == list(range(8))
    assert {gpu.name for gpu in sample.gpus} == {"NVIDIA RTX PRO 6000 Blackwell Server Edition"}
    assert {gpu.memory_total for gpu in sample.gpus} == {97887 << 20}
    assert {gpu.memory_used for gpu in sample.gpus} == {4 << 20}
    assert {gpu.capability for gpu in sample.gpus} == {(12, 0)}
    assert sample.driver == "595.71.05"
    assert not sample.findings


async def test_every_form_tells_the_same(tmp_path: Path) -> None:
    async with orphan(tmp_path, "5000", "2") as pid:
        for argv in ((), ("-q", "-x"), ("--query-gpu=index,name,memory.used,memory.total", "--format=csv")):
            code, out, _ = await run(tmp_path, "nvidia_smi", *argv)
            assert code == 0
            sample = read_smi(out, 0)
            assert [gpu.memory_used for gpu in sample.gpus] == [
                (5004 if gpu.index == 2 else 4) << 20 for gpu in sample.gpus
            ]
        code, out, _ = await run(
            tmp_path, "nvidia_smi", "--query-compute-apps=gpu_uuid,pid,used_memory", "--format=csv,noheader,nounits"
        )
        assert out == f"{gpu_state.gpus(tmp_path)[2].uuid}, {pid}, 5000\n"


async def test_memory_goes_with_its_process(tmp_path: Path) -> None:
    async with orphan(tmp_path):
        assert gpu_state.gpus(tmp_path)[3].used_mib == 86_218
        assert [holder.name for holder in gpu_state.holders(tmp_path, 3)] == ["python3 train.py"]
    assert gpu_state.gpus(tmp_path)[3].used_mib == 4
    # a later process with the same pid holds nothing
    gpu_state.hold(tmp_path, 0, 100, pid=os.getpid())
    assert gpu_state.gpus(tmp_path)[0].used_mib == 104
    path = tmp_path / "gpu/0" / str(os.getpid())
    path.write_text(path.read_text().replace(str(gpu_state.start_ticks(os.getpid())), "1"))
    assert gpu_state.gpus(tmp_path)[0].used_mib == 4


async def test_a_loop_prints_its_header_once_and_selects(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-S", str(STANDINS / "nvidia_smi.py"), "--query-gpu=index,memory.used", "--format=csv",
        "-lms", "10", "-i", "1,2", env=environment(tmp_path), stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    lines = [await asyncio.wait_for(process.stdout.readline(), 30) for _ in range(5)]
    process.kill()
    await process.wait()
    assert lines == [b"index, memory.used [MiB]\n", b"1, 4 MiB\n", b"2, 4 MiB\n", b"1, 4 MiB\n", b"2, 4 MiB\n"]


@pytest.mark.parametrize(
    ("argv", "code", "text"),
    [
        (("--query-gpu=foo", "--format=csv"), 2, 'Field "foo" is not a valid field to query.'),
        (("-i", "9", "-L"), 6, "No devices were found"),
        (("--query-gpu=index",), 2, "switch is missing"),
    ],
)
async def test_refusals(tmp_path: Path, argv: tuple[str, ...], code: int, text: str) -> None:
    assert (await run(tmp_path, "nvidia_smi", *argv))[0] == code
    assert text in (await run(tmp_path, "nvidia_smi", *argv))[1]


async def test_lists(tmp_path: Path) -> None:
    assert (await run(tmp_path, "nvidia_smi", "-L"))[1].startswith("GPU 0: NVIDIA RTX PRO 6000")
    assert "\tGPU0\tGPU1" in (await run(tmp_path, "nvidia_smi", "topo", "-m"))[1]


async def test_uv_makes_an_environment_with_the_wanted_vllm(tmp_path: Path) -> None:
    venv = tmp_path / "opt/vllm-0.16.0"
    code, _, err = await run(tmp_path, "uv", "venv", "--python", "python3", str(venv))
    assert code == 0
    assert "Creating virtual environment at:" in err
    code, _, err = await run(tmp_path, "uv", "pip", "install", "--python", str(venv / "bin/python"), "vllm==0.16.0")
    assert code == 0, err
    assert " + vllm==0.16.0" in err
    assert (venv / "pyvenv.cfg").is_file()
    process = await asyncio.create_subprocess_exec(
        venv / "bin/vllm", "--version", env=environment(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    assert (await process.communicate())[0] == b"0.16.0\n"
    code, _, err = await run(tmp_path, "uv", "pip", "install", "--python", str(venv / "bin/python"), "vllm==0.99.0")
    assert code == 1
    assert "Because there is no version of vllm==0.99.0" in err
    assert (await run(tmp_path, "uv", "venv", str(venv)))[0] == 2


async def test_the_programs_of_a_bare_node_need_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, data in programs(sys.executable).items():
        (folder / name).write_bytes(data)
        (folder / name).chmod(0o755)
    process = await asyncio.create_subprocess_exec(
        folder / "nvidia-smi", "-L", env=environment(tmp_path), stdout=asyncio.subprocess.PIPE, cwd="/"
    )
    out, _ = await process.communicate()
    assert out.count(b"RTX PRO 6000") == 8
