"""The check of a model's files: every kind of damage is named, good files are not read twice, the record is resumed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from console.checkpoint import node_shards, shards
from console.checkpoint.hub import HubFile, Manifest
from console.node.facts import FileEntry, FolderState
from tests.unit import checkpoint_samples as samples

SHARDS = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = tmp_path / "model"
    model.mkdir()
    weight_map = {}
    for number, name in enumerate(SHARDS):
        tensors = {f"layers.{number}.mlp.up_proj.weight": 3000, f"layers.{number}.norm.weight": 10}
        samples.safetensors(model / name, tensors)
        weight_map.update(dict.fromkeys(tensors, name))
    (model / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (model / "config.json").write_text(json.dumps(samples.KIMI))
    return model


def wanted(model: Path) -> list[dict[str, Any]]:
    """The files as the hub lists them: sha256 for shards, git's blob hash for the rest."""
    rows = []
    for path in sorted(model.iterdir()):
        data = path.read_bytes()
        lfs = path.suffix == ".safetensors"
        rows.append(
            {
                "path": path.name,
                "size": len(data),
                "sha256": hashlib.sha256(data).hexdigest() if lfs else None,
                "blob": None if lfs else samples.git_blob(data),
            }
        )
    return rows


def check(model: Path, files: list[dict[str, Any]], **options: Any) -> tuple[dict[str, Any], int]:
    """The record, and how many bytes were hashed."""
    said: list[dict[str, Any]] = []
    ask = {
        "folder": str(model),
        "record": str(model.parent / "state" / "record.json"),
        "files": files,
        "replicated": list(shards.REPLICATED),
        **options,
    }
    record = node_shards.Check(ask, lambda **fields: said.append(fields)).run()
    return record, said[-1]["done"]


def problems(record: dict[str, Any]) -> dict[str, str]:
    return {path: entry["problem"]["kind"] for path, entry in record["files"].items() if entry["problem"]}


def listing(model: Path) -> FolderState:
    entries = []
    for path in sorted(model.iterdir()):
        if path.exists():
            info = path.stat()
            entries.append(
                FileEntry(path.name, info.st_size, info.st_blocks * 512, info.st_mtime_ns, info.st_ino, None)
            )
    return FolderState(str(model), True, tuple(entries))


def manifest(files: list[dict[str, Any]]) -> Manifest:
    return Manifest("a/b", "0" * 40, tuple(HubFile(**row) for row in files))


def test_a_whole_folder_and_a_second_look_that_reads_nothing(folder: Path) -> None:
    files = wanted(folder)
    record, read = check(folder, files)
    assert problems(record) == {}
    assert read == sum(row["size"] for row in files)
    assert record["weights"] == {"total": 9030, "replicated": 30}
    report = shards.report(
        manifest(files), json.loads((folder.parent / "state" / "record.json").read_text()), listing(folder)
    )
    assert report.whole
    assert shards.evidence(manifest(files), report).endswith("sha256 match")
    again, read = check(folder, files)
    assert read == 0
    assert again["files"] == record["files"]
    assert check(folder, files, deep=True)[1] == sum(row["size"] for row in files)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-7] ^= 1
    path.write_bytes(data)


def hole(path: Path) -> None:
    size = 3 << 20
    samples.safetensors(path, {"layers.1.mlp.up_proj.weight": size, "layers.1.norm.weight": 10})
    whole = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(4096)
        file.truncate(whole)


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "missing": (lambda path: path.unlink(), "missing"),
    "dangling link": (lambda path: (path.unlink(), path.symlink_to("nowhere")), "missing"),
    "pointer": (lambda path: path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"), "lfs-pointer"),
    "page": (lambda path: path.write_bytes(b"<!doctype html><title>502</title>"), "page"),
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[:-100]), "truncated"),
    "empty": (lambda path: path.write_bytes(b""), "truncated"),
    "longer": (lambda path: path.write_bytes(path.read_bytes() + b"x"), "too-long"),
    "one flipped byte": (flip, "hash"),
    "header": (lambda path: path.write_bytes(b"\xff" * path.stat().st_size), "header"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGE)
def test_every_damage_is_named_and_the_rest_is_good(folder: Path, name: str) -> None:
    files = wanted(folder)
    damage, kind = DAMAGE[name]
    damage(folder / SHARDS[1])
    record, _ = check(folder, files)
    assert problems(record) == {SHARDS[1]: kind}
    report = shards.report(manifest(files), record | {"complete": True}, listing(folder))
    assert [fault.path for fault in report.faults] == [SHARDS[1]]
    assert not report.whole
    assert SHARDS[1] in shards.failure(report).message


def test_a_file_with_holes_is_named_by_them(folder: Path) -> None:
    shard = folder / SHARDS[1]
    samples.safetensors(shard, {"layers.1.mlp.up_proj.weight": 3 << 20, "layers.1.norm.weight": 10})
    files = wanted(folder)
    hole(shard)
    record, _ = check(folder, files)
    assert problems(record) == {SHARDS[1]: "hole"}


def test_index_and_surplus(folder: Path) -> None:
    index = folder / "model.safetensors.index.json"
    data = json.loads(index.read_text())
    data["weight_map"]["layers.2.lost.weight"] = SHARDS[2]
    data["weight_map"]["layers.9.weight"] = "model-00009-of-00003.safetensors"
    index.write_text(json.dumps(data))
    files = wanted(folder)
    samples.safetensors(folder / "old.safetensors", {"x": 1})
    record, _ = check(folder, files)
    assert record["index"] == [
        "model-00009-of-00003.safetensors is named by the index and is not there",
        f"{SHARDS[2]} does not hold layers.2.lost.weight, which the index says it does",
    ]
    assert record["surplus"] == ["old.safetensors"]


@pytest.mark.parametrize(
    ("spans", "words"),
    [
        ([[0, 4], [2, 8]], "overlap or leave a gap"),
        ([[0, 4], [5, 8]], "overlap or leave a gap"),
        (["x"], "without offsets"),
    ],
)
def test_a_header_that_breaks_the_format(tmp_path: Path, spans: list[Any], words: str) -> None:
    header = json.dumps({f"t{number}": {"data_offsets": span} for number, span in enumerate(spans)}).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 8)
    with pytest.raises(node_shards.Wrong, match=words):
        node_shards.read_header(str(path))


def test_an_interrupted_check_goes_on(folder: Path) -> None:
    files = wanted(folder)
    record, _ = check(folder, files[:3])
    assert len(record["files"]) == 3
    _, read = check(folder, files)
    assert read == sum(row["size"] for row in files[3:])


def test_a_changed_or_replaced_file_is_read_again(folder: Path) -> None:
    files = wanted(folder)
    check(folder, files)
    os.utime(folder / SHARDS[0], ns=(1, 1))
    assert check(folder, files)[1] == (folder / SHARDS[0]).stat().st_size
    twin = folder / "twin"
    twin.write_bytes((folder / SHARDS[1]).read_bytes())
    os.utime(twin, ns=(os.stat(folder / SHARDS[1]).st_mtime_ns,) * 2)
    twin.rename(folder / SHARDS[1])
    assert check(folder, files)[1] == (folder / SHARDS[1]).stat().st_size


def test_a_file_edited_in_place_is_good_by_its_original(folder: Path) -> None:
    files = wanted(folder)
    config = folder / "config.json"
    config.rename(folder / ("config.json" + node_shards.BACKUP))
    config.write_text("{}")
    record, _ = check(folder, files)
    assert problems(record) == {}
    report = shards.report(manifest(files), record | {"complete": True}, listing(folder))
    assert report.whole


def test_without_hashes_headers_and_sizes_are_said(folder: Path) -> None:
    files = [{**row, "sha256": None, "blob": None} for row in wanted(folder)]
    record, read = check(folder, files)
    report = shards.report(manifest(files), record | {"complete": True}, listing(folder))
    assert (read, report.whole) == (0, True)
    assert shards.evidence(manifest(files), report).endswith("headers and sizes match")


def test_a_record_of_nothing_covers_nothing(folder: Path) -> None:
    files = wanted(folder)
    report = shards.report(manifest(files), None, listing(folder))
    assert len(report.unchecked) == len(files)
    assert not report.whole
