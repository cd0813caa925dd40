"""The check of a model's files against what a shell does: hashing, headers, and the second look at an unchanged folder.

    python -m tests.benchmarks.checkpoint [--gib 2] [--runs 3] [--place FOLDER]

Hashing is the whole job of Relaunch against `sha256sum` over the same files, as many at a time as there are cores.
Headers are those of 119 shards, against opening them with `safetensors` where that package is installed. The second look
must stay under 50 ms.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import statistics
import struct
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from console.checkpoint import node_shards
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
    with tempfile.TemporaryDirectory(dir=options.place) as place:
        model, ask = Path(place) / "model", Path(place) / "ask.json"
        model.mkdir()
        for number in range(SHARDS):
            make_shard(
                model / f"model-{number:05d}-of-{SHARDS:05d}.safetensors", number, int(options.gib * 2**30) // SHARDS
            )
        files = sorted(str(path) for path in model.iterdir())
        question = {
            "folder": str(model),
            "record": f"{place}/state/r.json",
            "files": rows_of(model),
            "workers": cores(),
        }
        hashing(ask, question, files, options.runs)
        headers(files, options.runs)
        second_look(question)


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


def headers(files: list[str], runs: int) -> None:
    if importlib.util.find_spec("safetensors") is None:
        print("headers: the package safetensors is not installed here, so there is nothing to compare with")
        return
    script = (
        "import sys; from console.checkpoint import node_shards\nfor path in sys.argv[1:]: node_shards.tensors(path)"
    )
    ours, theirs = pairs(
        lambda: wall([sys.executable, "-c", script, *files]),
        lambda: wall([sys.executable, "-c", _OPEN_ALL, *files]),
        runs,
    )
    tell("headers of 119 shards against safetensors", ours, theirs, aim="1 or less")


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
