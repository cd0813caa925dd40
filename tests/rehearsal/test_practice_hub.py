# ruff: noqa: ASYNC240 - looks at a few local files
"""The practice hub, asked by the real huggingface_hub client in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from console.rehearsal.checkpoint import PRACTICE_COMMIT, make_checkpoint
from console.rehearsal.hub import start_hub

REPO = "nvidia/Kimi-K2.5-NVFP4"
CLIENT = """
import json, sys
from huggingface_hub import HfApi, snapshot_download
what, repo, revision, folder = sys.argv[1:]
try:
    if what == "info":
        info = HfApi().model_info(repo, revision=revision, files_metadata=True)
        answer = [info.sha, {f.rfilename: [f.size, f.lfs.sha256 if f.lfs else None] for f in info.siblings}]
    elif what == "tree":
        answer = sorted(entry.path for entry in HfApi().list_repo_tree(repo, revision=revision, recursive=True))
    elif what == "dry":
        rows = snapshot_download(repo, revision=revision, local_dir=folder, dry_run=True)
        answer = [len(rows), sum(row.file_size for row in rows if row.will_download)]
    else:
        answer = snapshot_download(repo, revision=revision, local_dir=folder)
except Exception as error:
    answer = {"error": type(error).__name__}
print(json.dumps(answer))
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    make_checkpoint(folder, "kimi", 119)
    return folder


@contextlib.asynccontextmanager
async def client(endpoint: str, home: Path, *argv: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CLIENT, *argv,
        env={
            "PATH": os.environ["PATH"], "HOME": str(home), "HF_HOME": str(home / "hf"), "HF_ENDPOINT": endpoint,
            "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1",
        },
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def ask(
    endpoint: str, home: Path, what: str, folder: Path, revision: str = PRACTICE_COMMIT, repo: str = REPO
) -> Any:
    async with client(endpoint, home, what, repo, revision, str(folder)) as process:
        out, _ = await asyncio.wait_for(process.communicate(), 60)
    return json.loads(out)


def same(left: Path, right: Path) -> list[str]:
    """Names of files that differ or lack."""
    return [
        path.name for path in left.iterdir()
        if not (right / path.name).is_file() or (right / path.name).read_bytes() != path.read_bytes()
    ]  # fmt: skip


async def test_info_tree_and_a_whole_download(model: Path, tmp_path: Path) -> None:
    endpoint, close = await start_hub({REPO: model})
    try:
        sha, files = await ask(endpoint, tmp_path, "info", tmp_path)
        assert sha == PRACTICE_COMMIT
        assert sorted(files) == sorted(path.name for path in model.iterdir())
        shard = sorted(model.glob("*.safetensors"))[3]
        assert files[shard.name] == [shard.stat().st_size, hashlib.sha256(shard.read_bytes()).hexdigest()]
        assert files["config.json"][1] is None
        assert await ask(endpoint, tmp_path, "tree", tmp_path) == sorted(files)
        total = sum(size for size, _ in files.values())
        assert await ask(endpoint, tmp_path, "dry", tmp_path / "new") == [len(files), total]
        target = tmp_path / "target"
        assert await ask(endpoint, tmp_path, "get", target) == str(target)
        assert same(model, target) == []
        assert await ask(endpoint, tmp_path, "dry", target) == [len(files), 0]
    finally:
        await close()


async def test_unknown_names(model: Path, tmp_path: Path) -> None:
    endpoint, close = await start_hub({REPO: model})
    try:
        assert await ask(endpoint, tmp_path, "get", tmp_path / "a", "0" * 40) == {"error": "RevisionNotFoundError"}
        assert await ask(endpoint, tmp_path, "get", tmp_path / "b", repo="no/such") == {
            "error": "RepositoryNotFoundError"
        }
    finally:
        await close()


@pytest.mark.parametrize(
    ("fault", "error"),
    [("hub-401", "RepositoryNotFoundError"), ("hub-403", "GatedRepoError"), ("hub-404", "RepositoryNotFoundError")],
)
async def test_refusals_have_the_clients_own_names(model: Path, tmp_path: Path, fault: str, error: str) -> None:
    endpoint, close = await start_hub({REPO: model}, lambda: {fault})
    try:
        assert await ask(endpoint, tmp_path, "get", tmp_path / "target") == {"error": error}
        assert await ask(endpoint, tmp_path, "info", tmp_path) == {"error": error}
    finally:
        await close()


async def test_a_missing_shard_is_listed_by_the_index_alone(model: Path, tmp_path: Path) -> None:
    endpoint, close = await start_hub({REPO: model}, lambda: {"missing-shard"})
    try:
        target = tmp_path / "target"
        assert await ask(endpoint, tmp_path, "get", target) == str(target)
        lacking = same(model, target)
        assert len(lacking) == 1
        assert lacking[0] in (target / "model.safetensors.index.json").read_text()
    finally:
        await close()


async def test_a_flipped_byte_arrives_with_the_right_size(model: Path, tmp_path: Path) -> None:
    endpoint, close = await start_hub({REPO: model}, lambda: {"hub-flip"})
    try:
        target = tmp_path / "target"
        assert await ask(endpoint, tmp_path, "get", target) == str(target)
        wrong = same(model, target)
        assert wrong
        assert all((target / name).stat().st_size == (model / name).stat().st_size for name in wrong)
    finally:
        await close()


async def test_a_rate_limit_is_waited_out(model: Path, tmp_path: Path) -> None:
    endpoint, close = await start_hub({REPO: model}, lambda: {"hub-429"})
    try:
        assert len(await ask(endpoint, tmp_path, "tree", tmp_path)) == len(list(model.iterdir()))
    finally:
        await close()


async def test_a_stall_stops_the_bytes_until_the_client_goes(model: Path, tmp_path: Path) -> None:
    endpoint, close = await start_hub({REPO: model}, lambda: {"stall"})
    target = tmp_path / "target"

    def shards() -> int:
        return len(list(target.glob("*.safetensors")))

    try:
        async with client(endpoint, tmp_path, "get", REPO, PRACTICE_COMMIT, str(target)) as process:
            before = -1
            async with asyncio.timeout(60):
                # still for a second: what a watchdog sees
                while before != shards() or shards() == 0:
                    before = shards()
                    await asyncio.sleep(1)
            assert process.returncode is None
            assert 0 < shards() < 119
        assert await ask(endpoint, tmp_path, "get", target) == str(target)
        assert same(model, target) == []
    finally:
        await close()
