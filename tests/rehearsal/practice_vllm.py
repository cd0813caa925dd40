# ruff: noqa: ASYNC240 - looks at a few local files
"""A stand-in vLLM under test: a sandbox folder, an installed version, and a server process with its log."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp

from console.rehearsal import gpu_state
from console.rehearsal.checkpoint import make_checkpoint
from console.rehearsal.vllm.install import install_vllm

LIMIT = 30.0
FAST = {"load": 0.03, "tokens": 0.05, "install": 0.0}


@contextlib.contextmanager
def sandbox(where: Path) -> Iterator[Path]:
    """A ROOT; its `net` is a link into a short folder, as on the practice node. Every holder of GPU memory is ended."""
    short = Path(tempfile.mkdtemp(prefix="relaunch-", dir="/tmp"))
    for folder in ("dev/shm", "gpu", "srv"):
        (where / folder).mkdir(parents=True, exist_ok=True)
    (where / "net").symlink_to(short)
    try:
        yield where
    finally:
        for gpu in gpu_state.gpus(where):
            for holder in gpu.holders:
                parent = int(Path(f"/proc/{holder.pid}/stat").read_text().rpartition(")")[2].split()[1])
                engine = Path(f"/proc/{parent}/comm").read_text().startswith("VLLM::")
                for pid in (holder.pid, *((parent,) if engine else ())):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
        shutil.rmtree(short, ignore_errors=True)


class Node:
    """A sandbox with vLLM versions and models in it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def vllm(self, version: str) -> Path:
        venv = self.root / f"opt/vllm-{version}"
        if not venv.exists():
            install_vllm(self.root, venv, version)
        return venv / "bin" / "vllm"

    def model(self, kind: str = "kimi", shards: int = 12) -> Path:
        folder = self.root / "srv" / f"{kind}-{shards}"
        make_checkpoint(folder, "kimi" if kind == "kimi" else "glm", shards)
        return folder

    def overlay(self, model: Path) -> Path:
        """Links to every file, and a config.json whose KV scheme is null."""
        folder = model.with_name(model.name + "-overlay")
        folder.mkdir()
        for path in model.iterdir():
            if path.name != "config.json":
                (folder / path.name).symlink_to(path)
        config = json.loads((model / "config.json").read_text())
        config["quantization_config"]["kv_cache_scheme"] = None
        (folder / "config.json").write_text(json.dumps(config, indent=4))
        return folder

    def faults(self, *names: str) -> None:
        rows = [{"name": name, "step": "launch"} for name in names]
        (self.root / "faults.json").write_text(json.dumps({**rows[0], "faults": rows}))

    def environment(self, **pace: float) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.root),
            "RELAUNCH_PRACTICE_ROOT": str(self.root),
            "RELAUNCH_PRACTICE_PACE": json.dumps({**FAST, **pace}),
        }

    def used(self) -> list[int]:
        return [gpu.used_mib for gpu in gpu_state.gpus(self.root)]

    def shm(self) -> list[str]:
        return sorted(path.name for path in (self.root / "dev/shm").iterdir())

    async def command(self, *argv: str | Path, **pace: float) -> tuple[int, str, str]:
        process = await asyncio.create_subprocess_exec(
            *argv,
            env=self.environment(**pace),
            cwd=self.root,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await asyncio.wait_for(process.communicate(), LIMIT)
        assert process.returncode is not None
        return process.returncode, out.decode(), err.decode()

    @contextlib.asynccontextmanager
    async def serve(
        self, model: Path, *flags: str, version: str = "0.16.0", ranks: int = 8, pace: dict[str, float] | None = None
    ) -> AsyncIterator[Server]:
        argv = [
            str(self.vllm(version)), "serve", str(model), "--served-model-name", "kimi-k2.5", "--port", "8000",
            "--trust-remote-code", "--tensor-parallel-size", str(ranks), "--max-model-len", "131072", *flags,
        ]  # fmt: skip
        logs = self.root / f"serve-{len(list(self.root.glob('serve-*')))}.log"
        with logs.open("wb") as file:
            process = await asyncio.create_subprocess_exec(
                *argv,
                env=self.environment(**(pace or {})),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        try:
            yield Server(self, process, logs)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


class Server:
    """A running `vllm serve`."""

    def __init__(self, node: Node, process: asyncio.subprocess.Process, logs: Path) -> None:
        self.node = node
        self.process = process
        self.logs = logs

    @property
    def log(self) -> str:
        return self.logs.read_bytes().decode()

    @property
    def lines(self) -> list[str]:
        return self.log.replace("\r\n", "\n").split("\n")

    async def says(self, text: str) -> None:
        """Wait until the log holds `text`."""
        try:
            async with asyncio.timeout(LIMIT):
                while text not in self.log:
                    assert self.process.returncode is None or text in self.log, self.log[-2000:]
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise AssertionError(f"{text!r} is not in the log:\n{self.log[-3000:]}") from None

    async def ready(self) -> Server:
        await self.says("Application startup complete.")
        return self

    async def code(self) -> int:
        """Wait for the end."""
        try:
            return await asyncio.wait_for(self.process.wait(), LIMIT)
        except TimeoutError:
            raise AssertionError(f"it does not end:\n{self.log[-3000:]}") from None

    @contextlib.asynccontextmanager
    async def http(self) -> AsyncIterator[aiohttp.ClientSession]:
        path = os.path.realpath(self.node.root / "net/8000.sock")
        async with aiohttp.ClientSession("http://node", connector=aiohttp.UnixConnector(path)) as session:
            yield session

    async def post(self, path: str, **body: Any) -> Any:
        async with self.http() as session, session.post(path, json={"model": "kimi-k2.5", **body}) as answer:
            return await answer.json()


async def until(true: Callable[[], bool]) -> None:
    """Wait for what nothing announces."""
    async with asyncio.timeout(LIMIT):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
