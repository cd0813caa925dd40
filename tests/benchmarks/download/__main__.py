"""Download through Relaunch's job against the bare `hf download` of the same files from the same local hub.

    python -m tests.benchmarks.download [--gib 2] [--rounds 3]

Prints seconds of each and the ratio (aim: within 2 %). Both are whole processes, start included, into fresh folders on the
same disk, in turn; the hub is aiohttp's own file server in a process of its own, as fast as loopback allows.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from console.checkpoint import node_download, node_tree

REPO = "bench/model"
COMMIT = "b" * 40
SHARDS = 24


def make_model(folder: Path, size: int) -> None:
    """Shards of random bytes; their content does not matter to a download."""
    folder.mkdir(parents=True)
    block = os.urandom(1 << 20)
    for number in range(SHARDS):
        with (folder / f"model-{number:05d}.safetensors").open("wb") as file:
            for index in range(size // SHARDS >> 20):
                file.write(index.to_bytes(8, "little") + block[8:])
    (folder / "config.json").write_text("{}")


def serve(folder: Path) -> tuple[subprocess.Popen[str], str]:
    """The hub in a process of its own; its endpoint."""
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.benchmarks.download.server", str(folder), REPO, COMMIT],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert server.stdout is not None
    return server, server.stdout.readline().strip()


def through_relaunch(endpoint: str, target: Path, rows: list[dict[str, object]]) -> float:
    job = target.with_name(target.name + "-job")
    job.mkdir()
    ask = {
        "folder": str(target), "repo": REPO, "revision": COMMIT, "endpoint": endpoint, "files": rows, "replace": [],
        "workers": 8, "stall_seconds": 60, "token_paths": [], "adopt": [], "job": str(job),
    }  # fmt: skip
    (job / "ask.json").write_text(json.dumps(ask))
    return timed([sys.executable, "-I", node_download.__file__, str(job / "ask.json")], {})


def bare(endpoint: str, target: Path) -> float:
    program = Path(sys.executable).with_name("hf")
    argv = [str(program), "download", REPO, "--revision", COMMIT, "--local-dir", str(target)]
    environment = {"HF_ENDPOINT": endpoint, "HF_HOME": str(target) + "-home", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    return timed(argv, {**environment, "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_UPDATE_CHECK": "1"})


def timed(argv: list[str], environment: dict[str, str]) -> float:
    begun = time.monotonic()
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, env={**os.environ, **environment})
    return time.monotonic() - begun


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gib", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        source = Path(place) / "source"
        make_model(source, int(options.gib * 2**30))
        server, endpoint = serve(source)
        try:
            ask = {"endpoint": endpoint, "repo": REPO, "revision": COMMIT, "token": ""}
            rows = node_tree.tree(ask)["files"]
            ours, theirs = [], []
            for number in range(options.rounds):
                for kind in ("bare", "ours") if number % 2 else ("ours", "bare"):
                    target = Path(place) / f"{kind}-{number}"
                    if kind == "ours":
                        ours.append(through_relaunch(endpoint, target, rows))
                    else:
                        theirs.append(bare(endpoint, target))
                    assert sum(path.stat().st_size for path in target.glob("*")if path.is_file()) == sum(row["size"] for row in rows)
                    shutil.rmtree(target)
        finally:
            server.terminate()
            server.wait()
    a, b = statistics.median(ours), statistics.median(theirs)
    print(f"download of {options.gib:g} GiB: relaunch {a:.2f} s, hf download {b:.2f} s, ratio {a / b:.3f} (aim 1.02 or less)")


if __name__ == "__main__":
    main()
    urllib.request.urlcleanup()
