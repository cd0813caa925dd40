"""Download through Relaunch against the bare `hf download` of the same files from the same local hub.

    python -m tests.benchmarks.download [--gib 1] [--runs 5] [--place FOLDER] [--only step|job]

Aim: within 2 %. Two comparisons, each in turn into fresh folders in memory, so that the disk's moods stay out:

step    the whole download step over SSH on a real systemd node of the lab, list of files, detached job, journal and look at
        the result included, against `ssh NODE hf download` on the same node, the connection's own setup included
job     the job's script against `hf download`, both as whole processes on this machine, start included

The hub is a file server in a process of its own, as fast as the network between them allows.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from console.checkpoint import node_download, node_tree
from console.checkpoint.question import question
from console.deploy.step import Context, Satisfied
from console.deploy.steps import step
from console.node.facts import Facts, read_facts
from console.node.ssh import connect
from console.profile.load import find_profile
from tests.benchmarks.figures import cores, pairs, spent, tell

REPO = "bench/model"
COMMIT = "b" * 40
SHARDS = 24
QUIET = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_UPDATE_CHECK": "1"}


def make_model(folder: Path, size: int) -> None:
    """Shards of bytes that no file system can fold together."""
    folder.mkdir(parents=True)
    block = os.urandom(1 << 20)
    for number in range(SHARDS):
        with (folder / f"model-{number:05d}.safetensors").open("wb") as file:
            for index in range(size // SHARDS >> 20):
                file.write((number << 32 | index).to_bytes(8, "little") + block[8:])
    (folder / "config.json").write_text("{}")


def serve(folder: Path, host: str) -> tuple[subprocess.Popen[str], str]:
    """The hub in a process of its own, and its endpoint."""
    argv = [sys.executable, "-m", "tests.benchmarks.download.server", str(folder), COMMIT, host]
    server = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    return server, server.stdout.readline().strip()


@contextlib.contextmanager
def serving(folder: Path, host: str) -> Iterator[str]:
    server, endpoint = serve(folder, host)
    try:
        yield endpoint
    finally:
        server.terminate()
        server.wait()


Spent = tuple[float, float]
"""Wall and processor seconds."""


def through_relaunch(endpoint: str, place: Path, rows: list[dict[str, Any]]) -> Spent:
    """Seconds of the job script that Relaunch runs on a node, to its end."""
    target, job = place / "model", place / "job"
    job.mkdir(parents=True)
    ask = {
        "folder": str(target), "repo": REPO, "revision": COMMIT, "endpoint": endpoint, "files": rows, "replace": [],
        "workers": 8, "stall_seconds": 60, "token_paths": [], "adopt": [], "job": str(job),
    }  # fmt: skip
    (job / "ask.json").write_text(json.dumps(ask))
    seconds = spent([sys.executable, "-I", node_download.__file__, str(job / "ask.json")])
    return cleared(place, rows, seconds)


def bare(endpoint: str, place: Path, rows: list[dict[str, Any]]) -> Spent:
    """Seconds of `hf download` with its defaults."""
    place.mkdir()
    program = Path(sys.executable).with_name("hf")
    argv = [str(program), "download", REPO, "--revision", COMMIT, "--local-dir", str(place / "model")]
    environment = {**os.environ, **QUIET, "HF_ENDPOINT": endpoint, "HF_HOME": str(place / "home")}
    return cleared(place, rows, spent(argv, env=environment))


def cleared(place: Path, rows: list[dict[str, Any]], seconds: Spent) -> Spent:
    """The seconds, when everything came; the place is free again."""
    came = sum(path.stat().st_size for path in (place / "model").glob("*") if path.is_file())
    assert came == sum(row["size"] for row in rows)
    shutil.rmtree(place)
    return seconds


def on_this_machine(place: Path, gib: float, runs: int) -> None:
    with serving(place / "source", "127.0.0.1") as endpoint:
        rows = node_tree.tree({"endpoint": endpoint, "repo": REPO, "revision": COMMIT, "token": ""})["files"]
        through_relaunch(endpoint, place / "run", rows), bare(endpoint, place / "run", rows)
        both = [
            (through_relaunch(endpoint, place / "run", rows), bare(endpoint, place / "run", rows)) for _ in range(runs)
        ]
    for what, at, aim in (("wall", 0, "1.02 or less"), ("CPU", 1, "")):
        ours, theirs = [one[at] for one, _ in both], [two[at] for _, two in both]
        tell(f"download of {gib:g} GiB by the job against `hf download`, {what}", ours, theirs, aim=aim)
        ratios = sorted(a / b for a, b in zip(ours, theirs, strict=True))
        print(f"  ratios of the pairs: {' '.join(f'{ratio:.3f}' for ratio in ratios)}")


# --------------------------------------------------------------------------------------------------------- on a real node

VENV, ROOM = "/opt/hub", "/srv/bench"


def on_a_node(place: Path, gib: float, runs: int) -> None:
    from tests.node.gpu_box import WHEELS, wheels
    from tests.node.lab import NoLab, open_lab

    try:
        with open_lab() as lab:
            machine = lab.boot("bench")
            machine.put_tree(wheels(place), WHEELS)
            machine.ssh(
                f"python3 -m venv {VENV} && {VENV}/bin/pip -q install --disable-pip-version-check --no-index "
                f"--find-links {WHEELS} huggingface_hub && mkdir -p {ROOM} && "
                f"mount -t tmpfs -o size={int(gib * 1024 + 512)}m tmpfs {ROOM}"
            )
            gateway = machine.ssh("ip -4 neigh show | cut -d' ' -f1").split()[0]
            with serving(place / "source", gateway) as endpoint:
                ours, theirs = pairs(
                    lambda: asyncio.run(by_step(machine, endpoint)), lambda: by_hand(machine, endpoint), runs
                )
    except NoLab as reason:
        print(f"download step on a node: not measured, {reason}")
        return
    tell(f"download of {gib:g} GiB by the step against `ssh … hf download`", ours, theirs, aim="1.02 or less")


def cleared_node(machine: Any) -> None:
    """What came is all there; then nothing is left of it, the remembered list of files included."""
    size = machine.ssh(f"du -sb --exclude=.cache {ROOM}/model | cut -f1").strip()
    assert int(size) > 1 << 20, size
    machine.ssh(f"rm -rf {ROOM}/model {ROOM}/home /var/lib/relaunch/manifests /var/lib/relaunch/jobs")


def by_hand(machine: Any, endpoint: str) -> float:
    quiet = " ".join(f"{name}={value}" for name, value in QUIET.items())
    line = (
        f"HF_ENDPOINT={endpoint} HF_HOME={ROOM}/home {quiet} {VENV}/bin/hf download {REPO} --revision {COMMIT} "
        f"--local-dir {ROOM}/model >/dev/null"
    )
    began = time.perf_counter()
    machine.ssh(line)
    seconds = time.perf_counter() - began
    cleared_node(machine)
    return seconds


async def by_step(machine: Any, endpoint: str) -> float:
    shipped = find_profile("rehearsal")
    model = shipped.model.model_copy(
        update={"repo": REPO, "revision": COMMIT, "folder": f"{ROOM}/model", "endpoint": endpoint}
    )
    profile = shipped.model_copy(update={"model": model, "vllm": shipped.vllm.model_copy(update={"venv": VENV})})
    began = time.perf_counter()
    async with connect(machine.target()) as node:

        async def refresh() -> Facts:
            ctx.facts = await read_facts(node, question(profile))
            return ctx.facts

        async def confirm(question: str, word: str) -> bool:
            return False

        ctx = Context(node, profile, await read_facts(node, question(profile)), lambda event: None, confirm, refresh)
        chosen = step("download")
        assert not isinstance(await chosen.check(ctx), Satisfied)
        await chosen.apply(ctx)
        await chosen.verify(ctx)
    seconds = time.perf_counter() - began
    cleared_node(machine)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--place", default="/dev/shm" if os.path.isdir("/dev/shm") else None)
    parser.add_argument("--only", choices=("step", "job"))
    options = parser.parse_args()
    print(f"{cores()} cores, load average {os.getloadavg()[0]:.1f} before the first run", flush=True)
    with tempfile.TemporaryDirectory(dir=options.place) as folder:
        place = Path(folder)
        make_model(place / "source", int(options.gib * 2**30))
        if options.only != "step":
            on_this_machine(place, options.gib, options.runs)
        if options.only != "job":
            on_a_node(place, options.gib, options.runs)
    print(f"load average {os.getloadavg()[0]:.1f} after the last run")


if __name__ == "__main__":
    main()
