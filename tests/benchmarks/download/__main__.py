"""Download through Relaunch's job against the bare `hf download` of the same files from the same local hub.

    python -m tests.benchmarks.download [--gib 1] [--runs 5] [--place FOLDER]

Aim: within 2 %. Both are whole processes, start included, into fresh folders under `--place`, in turn. The hub is a file
server in a process of its own, as fast as loopback allows; a memory file system keeps the disk's moods out.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from console.checkpoint import node_download, node_tree
from tests.benchmarks.figures import pairs, tell, wall

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


def serve(folder: Path) -> tuple[subprocess.Popen[str], str]:
    """The hub in a process of its own, and its endpoint."""
    argv = [sys.executable, "-m", "tests.benchmarks.download.server", str(folder), COMMIT]
    server = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    return server, server.stdout.readline().strip()


def through_relaunch(endpoint: str, place: Path, rows: list[dict[str, Any]]) -> float:
    """Seconds of the job script that Relaunch runs on a node, to its end."""
    target, job = place / "model", place / "job"
    job.mkdir(parents=True)
    ask = {
        "folder": str(target), "repo": REPO, "revision": COMMIT, "endpoint": endpoint, "files": rows, "replace": [],
        "workers": 8, "stall_seconds": 60, "token_paths": [], "adopt": [], "job": str(job),
    }  # fmt: skip
    (job / "ask.json").write_text(json.dumps(ask))
    seconds = wall([sys.executable, "-I", node_download.__file__, str(job / "ask.json")])
    return cleared(place, rows, seconds)


def bare(endpoint: str, place: Path, rows: list[dict[str, Any]]) -> float:
    """Seconds of `hf download` with its defaults."""
    place.mkdir()
    program = Path(sys.executable).with_name("hf")
    argv = [str(program), "download", REPO, "--revision", COMMIT, "--local-dir", str(place / "model")]
    environment = {**os.environ, **QUIET, "HF_ENDPOINT": endpoint, "HF_HOME": str(place / "home")}
    return cleared(place, rows, wall(argv, env=environment))


def cleared(place: Path, rows: list[dict[str, Any]], seconds: float) -> float:
    """The seconds, when everything came; the place is free again."""
    came = sum(path.stat().st_size for path in (place / "model").glob("*") if path.is_file())
    assert came == sum(row["size"] for row in rows)
    shutil.rmtree(place)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--place", default="/dev/shm" if os.path.isdir("/dev/shm") else None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.place) as folder:
        place = Path(folder)
        make_model(place / "source", int(options.gib * 2**30))
        server, endpoint = serve(place / "source")
        try:
            ask = {"endpoint": endpoint, "repo": REPO, "revision": COMMIT, "token": ""}
            rows = node_tree.tree(ask)["files"]
            ours, theirs = pairs(
                lambda: through_relaunch(endpoint, place / "run", rows),
                lambda: bare(endpoint, place / "run", rows),
                options.runs,
            )
        finally:
            server.terminate()
            server.wait()
    tell(f"download of {options.gib:g} GiB by the job against `hf download`", ours, theirs, aim="1.02 or less")


if __name__ == "__main__":
    main()
