"""The check of a model's files against what a shell does: hashing, headers, and the second look at an unchanged folder.

    python -m tests.benchmarks.checkpoint [--gib 2] [--runs 3] [--place FOLDER]

Hashing is the whole job of Relaunch against `sha256sum` over the same files, as many at a time as there are cores.
Headers are those of 119 shards, against opening them with the package `safetensors`, which is installed for this into an
environment under .pytest_cache; both as whole processes of the same interpreter, and both without a process's start. The
second look must stay under 50 ms: of the job here, and of the step on a real systemd node of the lab.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path
from typing import Any

from console.checkpoint import node_shards
from console.checkpoint.hub import FOUND, HubFile, Manifest
from console.checkpoint.question import question
from console.checkpoint.shards import job_name
from console.deploy.step import Context, Satisfied
from console.deploy.steps import step
from console.node.facts import Facts, read_facts
from console.node.ssh import connect
from console.profile.load import find_profile
from console.rehearsal.checkpoint import PRACTICE_COMMIT, make_checkpoint
from console.rehearsal.hub import read_blobs
from tests.benchmarks.figures import cores, pairs, tell, wall

SHARDS = 119
TENSORS = 200
_OPEN_ALL = (
    "import sys; from safetensors import safe_open\n"
    "for path in sys.argv[1:]:\n    with safe_open(path, 'numpy') as file: file.keys()"
)


def make_shard(path: Path, number: int, size: int) -> None:
    """A shard with a header of some size, and data that differs from every other one's."""
    header, at = {}, 0
    for index in range(TENSORS):
        count = size // TENSORS
        header[f"model.layers.{number}.mlp.experts.{index}.up_proj.weight"] = {
            "dtype": "U8", "shape": [count], "data_offsets": [at, at + count],
        }  # fmt: skip
        at += count
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        block = os.urandom(min(at, 1 << 20))
        written = 0
        while written < at:
            written += file.write(block[: at - written])


def rows_of(folder: Path) -> list[dict[str, Any]]:
    rows = []
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        rows.append({"path": path.name, "size": path.stat().st_size, "sha256": digest, "blob": None})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gib", type=float, default=2.0)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--place", default="/dev/shm" if os.path.isdir("/dev/shm") else None)
    options = parser.parse_args()
    print(f"{cores()} cores, load average {os.getloadavg()[0]:.1f} before the first run", flush=True)
    with tempfile.TemporaryDirectory(dir=options.place) as place:
        model, ask = Path(place) / "model", Path(place) / "ask.json"
        model.mkdir()
        for number in range(SHARDS):
            make_shard(
                model / f"model-{number:05d}-of-{SHARDS:05d}.safetensors", number, int(options.gib * 2**30) // SHARDS
            )
        files = sorted(str(path) for path in model.iterdir())
        asked = {
            "folder": str(model),
            "record": f"{place}/state/r.json",
            "files": rows_of(model),
            "workers": cores(),
        }
        hashing(ask, asked, files, options.runs)
        headers(files, options.runs)
        second_look(asked)
    second_look_on_a_node()
    print(f"load average {os.getloadavg()[0]:.1f} after the last run")


def hashing(ask: Path, question: dict[str, Any], files: list[str], runs: int) -> None:
    ask.write_text(json.dumps({**question, "deep": True}))
    listing = ask.with_name("files")
    listing.write_text("\0".join(files))
    ours, theirs = pairs(
        lambda: wall([sys.executable, "-I", node_shards.__file__, str(ask)]),
        lambda: wall(["xargs", "-0", "-a", str(listing), "-P", str(cores()), "-n", "4", "sha256sum"]),
        runs,
    )
    tell(f"hashing {len(files)} shards against sha256sum in parallel", ours, theirs, aim="1 or less")


def environment() -> Path:
    """The Python of an environment that has `safetensors`; made when it is missing."""
    place = Path(__file__).parents[3] / ".pytest_cache" / "bench-safetensors"
    python = place / "bin" / "python"
    if not list(place.glob("lib/python3.*/site-packages/safetensors/__init__.py")):
        venv.create(place, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "-q", "install", "--disable-pip-version-check", "safetensors", "numpy"]
        subprocess.run(pip, check=True)
    return python


def headers(files: list[str], runs: int) -> None:
    try:
        python = str(environment())
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"headers: safetensors cannot be installed here ({error}), so there is nothing to compare with")
        return
    folder = str(Path(node_shards.__file__).parent)
    ours_too = f"import sys; sys.path.insert(0, {folder!r}); import node_shards\n"
    ask = ours_too + "for path in sys.argv[1:]: node_shards.tensors(path)"
    ours, theirs = pairs(
        lambda: wall([python, "-I", "-c", ask, *files]), lambda: wall([python, "-I", "-c", _OPEN_ALL, *files]), runs
    )
    tell("headers of 119 shards against safetensors, whole processes", ours, theirs, aim="1 or less")
    ours, theirs = pairs(
        lambda: inside(python, ours_too, "node_shards.SEEN.clear(); [node_shards.tensors(path) for path in paths]", files),
        lambda: inside(
            python, "import sys; from safetensors import safe_open\n",
            "[safe_open(path, 'numpy').__enter__().keys() for path in paths]", files,
        ),
        runs,
    )  # fmt: skip
    tell("headers of 119 shards against safetensors, without the start", ours, theirs, aim="1 or less")


def inside(python: str, prepare: str, work: str, files: list[str]) -> float:
    """Seconds that `work` took within a process, its imports done."""
    text = f"{prepare}import time\npaths = sys.argv[1:]\nbegan = time.perf_counter()\n{work}\nprint(time.perf_counter() - began)"
    done = subprocess.run([python, "-I", "-c", text, *files], check=True, capture_output=True, text=True)
    return float(done.stdout)


_LOOK = """
import json, sys, time
sys.path.insert(0, sys.argv[1])
import node_shards
with open(sys.argv[2]) as file: ask = json.load(file)
spans = []
for _ in range(5):
    began = time.perf_counter()
    check = node_shards.Check(ask, lambda **fields: None)
    spans.append((time.perf_counter() - began) * 1000)
    assert check.todo == []
print(sorted(spans)[2])
"""


def second_look_on_a_node() -> None:
    """119 shards on a node: the job's own look, and the step's check from facts that are read anew."""
    from tests.node.lab import NoLab, open_lab

    try:
        with open_lab() as lab, tempfile.TemporaryDirectory() as place:
            machine = lab.boot("bench")
            model = Path(place) / "model"
            make_checkpoint(model, "kimi", SHARDS)
            machine.put_tree(model, "/srv/model")
            machine.put("/srv/script/node_shards.py", Path(node_shards.__file__).read_bytes())
            asyncio.run(_steps_on(machine, rows_of_all(model)))
    except NoLab as reason:
        print(f"second look on a node: not measured, {reason}")


async def _steps_on(machine: Any, manifest: Manifest) -> None:
    shipped = find_profile("rehearsal")
    model = shipped.model.model_copy(update={"folder": "/srv/model"})
    profile = shipped.model_copy(update={"model": model})
    async with connect(machine.target()) as node:

        async def refresh() -> Facts:
            ctx.facts = await read_facts(node, question(profile))
            return ctx.facts

        async def confirm(question: str, word: str) -> bool:
            return False

        facts = await read_facts(node, question(profile))
        ctx = Context(node, profile, facts, lambda event: None, confirm, refresh, found={FOUND: manifest})
        chosen = step("shards")
        await chosen.apply(ctx)
        await refresh()
        spans = []
        for _ in range(9):
            began = time.perf_counter()
            assert isinstance(await chosen.check(ctx), Satisfied)
            spans.append((time.perf_counter() - began) * 1000)
        print(
            f"second check of the step on a node: {statistics.median(spans):.2f} ms beside the facts; aim under 50 ms"
        )
        spans = []
        for _ in range(9):
            began = time.perf_counter()
            await refresh()
            spans.append((time.perf_counter() - began) * 1000)
        print(f"the facts of the model's files, over SSH: {statistics.median(spans):.0f} ms")
        job = "/var/lib/relaunch/jobs/" + job_name(profile)
        span = machine.ssh(f"python3 -I - /srv/script {job}/ask.json", input=_LOOK.encode())
        print(f"second look of the job on a node: {float(span):.1f} ms; aim under 50 ms")


def rows_of_all(folder: Path) -> Manifest:
    """Every file of the folder as the hub lists it."""
    blobs = read_blobs(folder)
    files = tuple(
        HubFile(blob.path, blob.size, blob.sha256, None if blob.sha256 else blob.oid) for blob in blobs.values()
    )
    return Manifest("nvidia/Kimi-K2.5-NVFP4", PRACTICE_COMMIT, files)


def second_look(question: dict[str, Any]) -> None:
    spans = []
    for _ in range(5):
        begun = time.perf_counter()
        check = node_shards.Check(question, lambda **fields: None)
        spans.append((time.perf_counter() - begun) * 1000)
        assert check.todo == []
    print(f"second look at an unchanged folder: {statistics.median(spans):.1f} ms; aim under 50 ms")


if __name__ == "__main__":
    main()
