"""The download job against a real HTTP hub and the real huggingface_hub client: success, every fault, adoption, kills."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from console.checkpoint import node_download, node_tree
from console.rehearsal.checkpoint import PRACTICE_COMMIT, make_checkpoint
from console.rehearsal.hub import start_hub
from tests.unit import checkpoint_samples as samples

REPO = "nvidia/Kimi-K2.5-NVFP4"
SCRIPT = Path(node_download.__file__)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hub") / "kimi"
    make_checkpoint(folder, "kimi", shards=12)
    return folder


@dataclass
class Lab:
    """A hub, and a place to download to."""

    source: Path
    endpoint: str
    faults: set[str]
    tmp: Path
    rows: list[dict[str, Any]] = field(default_factory=list)
    ask: dict[str, Any] = field(default_factory=dict)
    rate: float = 0.0

    @property
    def folder(self) -> Path:
        return self.tmp / "model"

    def prepare(self, **options: Any) -> list[str]:
        """Write the ASK; the argv of the job."""
        job = self.tmp / "job"
        job.mkdir(exist_ok=True)
        ask = {
            "folder": str(self.folder), "repo": REPO, "revision": PRACTICE_COMMIT, "endpoint": self.endpoint,
            "files": self.rows, "workers": 4, "stall_seconds": 30, "token_paths": [], "adopt": [], "job": str(job),
        }  # fmt: skip
        (job / "ask.json").write_text(json.dumps({**ask, **options}))
        return [sys.executable, "-I", str(SCRIPT), str(job / "ask.json")]

    async def run(self, **options: Any) -> tuple[int, list[dict[str, Any]]]:
        """Run the job to its end: exit code, and what it said."""
        process = await asyncio.create_subprocess_exec(
            *self.prepare(**options), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        out, err = await process.communicate()
        assert not err, err.decode()
        return process.returncode or 0, [json.loads(line) for line in out.splitlines()]

    def whole(self) -> bool:
        return all(
            (self.folder / row["path"]).is_file()
            and (self.folder / row["path"]).read_bytes() == (self.source / row["path"]).read_bytes()
            for row in self.rows
        )


@asynccontextmanager
async def laboratory(source: Path, tmp: Path) -> AsyncIterator[Lab]:
    faults: set[str] = set()
    lab = Lab(source, "", faults, tmp)
    lab.endpoint, close = await start_hub({REPO: source}, lambda: faults, rate=lambda: lab.rate)
    try:
        answer = await asyncio.to_thread(
            node_tree.tree, {"endpoint": lab.endpoint, "repo": REPO, "revision": PRACTICE_COMMIT, "token": ""}
        )
        lab.rows = answer["files"]
        yield lab
    finally:
        await close()


@pytest.fixture
async def lab(source: Path, tmp_path: Path) -> AsyncIterator[Lab]:
    async with laboratory(source, tmp_path) as found:
        yield found


async def test_a_download_ends_whole_and_a_second_one_fetches_nothing(lab: Lab) -> None:
    code, said = await lab.run()
    assert (code, said[-1]["ok"]) == (0, True)
    assert lab.whole()
    assert said[-2]["done"] == said[-2]["total"] == sum(row["size"] for row in lab.rows)
    before = {path: path.stat().st_ino for path in lab.folder.glob("*")}
    code, _ = await lab.run()
    assert code == 0
    assert {path: path.stat().st_ino for path in lab.folder.glob("*")} == before
    assert not (lab.folder / ".cache" / "relaunch-hub").exists()
    assert json.loads((lab.tmp / "job" / "progress.json").read_text())["files_done"] == len(lab.rows)


@pytest.mark.parametrize(
    ("fault", "kind"), [("hub-401", "auth_invalid"), ("hub-403", "gated_repo"), ("hub-404", "not_found")]
)
async def test_a_refusal_is_named_at_once(lab: Lab, fault: str, kind: str) -> None:
    lab.faults.add(fault)
    code, said = await lab.run()
    assert (code, said[-1]["ok"], said[-1]["kind"]) == (6, False, kind)


@pytest.mark.parametrize("fault", ["hub-429", "hub-reset"])
async def test_passing_trouble_is_got_over(lab: Lab, fault: str) -> None:
    lab.faults.add(fault)
    code, _ = await lab.run()
    assert code == 0
    assert lab.whole()


async def test_a_download_that_stands_still_is_started_again(lab: Lab) -> None:
    lab.faults.add("stall")
    code, said = await lab.run(stall_seconds=2)
    assert {line["kind"] for line in said if line["event"] == "trouble"} == {"stalled"}
    assert code == 0
    assert lab.whole()


async def test_what_lies_there_is_adopted_and_what_is_wrong_is_fetched(lab: Lab) -> None:
    shards = [row for row in lab.rows if row["path"].endswith(".safetensors")]
    lab.folder.mkdir()
    good, short, pointer, linked = (row["path"] for row in shards[:4])
    for row in shards[:1]:
        (lab.folder / row["path"]).write_bytes((lab.source / row["path"]).read_bytes())
    (lab.folder / short).write_bytes(b"short")
    (lab.folder / pointer).write_text("version https://git-lfs.github.com/spec/v1\n")
    sha = shards[2]["sha256"]
    store = lab.folder / ".git" / "lfs" / "objects" / sha[:2] / sha[2:4]
    store.mkdir(parents=True)
    (store / sha).write_bytes((lab.source / pointer).read_bytes())
    other = lab.tmp / "snapshot"
    other.mkdir()
    (other / linked).write_bytes((lab.source / linked).read_bytes())
    stale = lab.folder / ".cache" / "huggingface" / "download" / "x.abc.incomplete"
    stale.parent.mkdir(parents=True)
    stale.write_bytes(b"z" * 1000)
    inode = (lab.folder / good).stat().st_ino
    code, said = await lab.run(adopt=[str(other)])
    assert code == 0
    assert lab.whole()
    assert (said[0]["adopted"], said[0]["swept"]) == (2, 1000)
    assert (lab.folder / good).stat().st_ino == inode
    assert (lab.folder / pointer).stat().st_ino == (store / sha).stat().st_ino
    assert not stale.exists()


async def test_a_file_named_as_wrong_is_fetched_again_although_the_hub_trusts_it(lab: Lab) -> None:
    await lab.run()
    victim = next(row["path"] for row in lab.rows if row["path"].endswith(".safetensors"))
    data = bytearray((lab.folder / victim).read_bytes())
    data[-1] ^= 1
    stat = (lab.folder / victim).stat()
    (lab.folder / victim).write_bytes(data)
    os.utime(lab.folder / victim, ns=(stat.st_mtime_ns, stat.st_mtime_ns))
    code, _ = await lab.run()
    assert not lab.whole(), "the size is right, so this is for the shard check to find"
    code, _ = await lab.run(replace=[victim])
    assert code == 0
    assert lab.whole()


async def test_a_killed_job_goes_on_with_whole_files_kept(lab: Lab) -> None:
    lab.rate = 5e5
    process = await asyncio.create_subprocess_exec(*lab.prepare(), stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    async for _ in process.stdout:
        if any(lab.folder.glob("*.safetensors")):
            break
    os.kill(process.pid, signal.SIGKILL)
    await process.communicate()
    kept = {path.name: path.stat().st_ino for path in lab.folder.glob("*.safetensors")}
    assert kept
    lab.rate = 0.0
    code, _ = await lab.run()
    assert code == 0
    assert lab.whole()
    assert {name: (lab.folder / name).stat().st_ino for name in kept} == kept


async def test_two_jobs_never_write_to_the_same_folder(lab: Lab) -> None:
    lab.rate = 3e6
    process = await asyncio.create_subprocess_exec(*lab.prepare(), stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    await process.stdout.readline()
    code, said = await lab.run()
    assert (code, said[-1]["kind"]) == (6, "busy")
    lab.rate = 0.0
    await process.communicate()
    assert process.returncode == 0


def spoken(pid: int) -> bytes:
    """Command lines and environments of a process and its children."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return b"".join(
        Path(f"/proc/{one}/{name}").read_bytes() for one in (pid, *children) for name in ("cmdline", "environ")
    )


async def test_the_token_stands_in_a_file_and_nowhere_else(lab: Lab) -> None:
    lab.faults.add("hub-401")
    token = lab.tmp / "token"
    token.write_text("hf_sentinelsentinelsentinel")
    lab.rate = 3e6
    process = await asyncio.create_subprocess_exec(
        *lab.prepare(token_paths=[str(token)]), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    lines = [await process.stdout.readline(), await process.stdout.readline()]
    seen = spoken(process.pid)
    lab.rate = 0.0
    out, err = await process.communicate()
    assert process.returncode == 0, "the hub wants a token and got it"
    assert b"sentinel" not in seen + b"".join(lines) + out + err


def test_the_tree_says_what_the_hub_says(source: Path, tmp_path: Path) -> None:
    async def ask() -> dict[str, Any]:
        async with laboratory(source, tmp_path) as lab:
            wrong = {"endpoint": lab.endpoint, "repo": REPO, "revision": "f" * 40, "token": ""}
            return {"rows": lab.rows, "wrong": await asyncio.to_thread(node_tree.tree, wrong)}

    found = asyncio.run(ask())
    by_path = {row["path"]: row for row in found["rows"]}
    config = (source / "config.json").read_bytes()
    assert by_path["config.json"]["blob"] == samples.git_blob(config)
    assert found["wrong"]["error"]["status"] == 404
    assert "RevisionNotFound" in found["wrong"]["error"]["text"]
