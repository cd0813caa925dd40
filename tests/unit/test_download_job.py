"""The download job against a real HTTP hub and the real huggingface_hub client: success, every fault, adoption, kills."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from console.checkpoint import node_download, node_shards, node_tree
from console.rehearsal.checkpoint import PRACTICE_COMMIT, make_checkpoint
from console.rehearsal.hub import start_hub
from console.rehearsal.processes import descendants
from tests.unit import checkpoint_samples as samples
from tests.unit.fault_hub import FaultHub, fault_hub

REPO = "nvidia/Kimi-K2.5-NVFP4"
SCRIPT = Path(node_download.__file__)
HUB_PYTHON = os.environ.get("RELAUNCH_HUB_PYTHON", sys.executable)
"""Whose huggingface_hub downloads: another one's, to run this file against another release of the hub."""


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
        return [HUB_PYTHON, "-I", str(SCRIPT), str(job / "ask.json")]

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


def alive(pid: int) -> bool:
    """Whether the process runs; one that is dead and not waited for does not."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


async def until(process: asyncio.subprocess.Process, seconds: float) -> None:
    """Let the job run for so long, or to its end."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.shield(process.wait()), seconds)


async def killed_twenty_times(lab: Lab, hub: FaultHub, chance: random.Random) -> tuple[int, Counter[str]]:
    """Start the job and kill -9 it, twenty times; how many files were whole at the last, and the GETs per file that were
    asked for after it was whole."""
    again: Counter[str] = Counter()
    whole: dict[str, int] = {}
    for _ in range(20):
        before = Counter(hub.gets)
        process = await asyncio.create_subprocess_exec(*lab.prepare(), stdout=asyncio.subprocess.DEVNULL)
        while hub.gets == before and process.returncode is None:  # noqa: ASYNC110 - the hub has no event per client
            await asyncio.sleep(0.01)
        await until(process, chance.uniform(0.0, 0.5))
        family = (process.pid, *descendants(process.pid))
        victims = chance.choice((family[:1], family[1:], family))  # the supervisor, its worker, or both
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if process.pid not in victims:
            await until(process, chance.uniform(0.0, 0.3))  # it goes on with another worker
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        await process.wait()
        async with asyncio.timeout(20):
            while any(alive(pid) for pid in family):  # noqa: ASYNC110 - no child of ours, so nobody tells
                await asyncio.sleep(0.01)
        again.update({path: hub.gets[path] - before[path] for path in whole if hub.gets[path] > before[path]})
        now = {
            row["path"]: (lab.folder / row["path"]).stat().st_ino
            for row in lab.rows
            if row["path"].endswith(".safetensors")
            and node_download.size_of(str(lab.folder / row["path"])) == row["size"]
        }
        assert {path: now.get(path) for path in whole} == whole, "a whole file is never touched again"
        whole = now
    return len(whole), again


async def test_twenty_kills_lose_at_most_what_is_in_flight(tmp_path: Path) -> None:
    chance = random.Random(20)
    source = tmp_path / "source"
    await asyncio.to_thread(make_checkpoint, source, "kimi", 119)
    async with fault_hub({REPO: source}) as hub:
        hub.rate = 1.2e6
        lab = Lab(source, hub.endpoint, hub.faults, tmp_path)
        ask = {"endpoint": hub.endpoint, "repo": REPO, "revision": PRACTICE_COMMIT, "token": ""}
        lab.rows = (await asyncio.to_thread(node_tree.tree, ask))["files"]
        whole, again = await killed_twenty_times(lab, hub, chance)
        assert 0 < whole < 119, "the kills fell into the download"
        assert again == Counter(), "what is whole is not asked for again"
        hub.rate = 0.0
        before = Counter(hub.gets)
        code, said = await lab.run()
        assert (code, said[-1]["ok"]) == (0, True)
        assert sum((hub.gets - before).values()) == 119 - whole
    assert lab.whole()
    # each kill costs at most one more GET of the four files in flight, and one of the worker that came after it
    assert sum(hub.gets.values()) - 119 <= 20 * 2 * 4
    record = node_shards.Check(
        {"folder": str(lab.folder), "record": str(tmp_path / "record.json"), "files": lab.rows}, lambda **fields: None
    ).run()
    assert {path for path, entry in record["files"].items() if entry["problem"]} == set()
    assert node_download.incomplete_files(str(lab.folder)) == []


@pytest.mark.parametrize(("fault", "kind"), [("api-429", 429), ("api-503", 503)])
async def test_the_tree_is_asked_patiently_and_then_told(source: Path, fault: str, kind: int) -> None:
    async with fault_hub({REPO: source}) as hub:
        ask = {
            "endpoint": hub.endpoint,
            "repo": REPO,
            "revision": PRACTICE_COMMIT,
            "token": "",
            "configs": ["config.json"],
        }
        hub.faults.add(fault)
        waiting = asyncio.ensure_future(asyncio.to_thread(node_tree.tree, ask))
        found = await waiting
        assert found["error"]["status"] == kind
        asking = asyncio.ensure_future(asyncio.to_thread(node_tree.tree, ask))
        await asyncio.sleep(0.2)
        hub.faults.clear()
        found = await asking
        assert len(found["files"]) > 12
        assert found["configs"] == {"config.json": (source / "config.json").read_text()}


def test_what_the_client_waits_for_is_told_instead_of_a_stall(tmp_path: Path) -> None:
    log = tmp_path / "hub.log"
    log.write_text(
        "HTTP Error 503 thrown while requesting GET http://h/x?X-Amz-Signature=1\nRetrying in 8s [Retry 4/5].\n"
    )
    status, word = node_download.last_word(str(log))
    assert node_download.classify(status, "") == "server_error"
    assert word == "HTTP Error 503 thrown while requesting GET http://h/x?..."
    log.write_text("Error while downloading from http://h/x: peer closed connection\nTrying to resume download...\n")
    assert node_download.last_word(str(log)) == (
        None,
        "Error while downloading from http://h/x: peer closed connection",
    )
    assert node_download.last_word(str(tmp_path / "none")) == (None, "")
