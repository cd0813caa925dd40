"""`relaunch patch DIR`: overlay, in place, restore, dry run, refusal; links of a hub cache; the published configs."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest
import yaml

from console.checkpoint.local import fit_folder, parse_capability, patch_folder
from console.errors import DownloadFailed, Refused, UsageError
from tests.unit import checkpoint_samples as samples

CASES = Path("/work/shared/cases/configs")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model folder: two JSON files, a shard, a folder with a file, a hub's bookkeeping."""
    folder = tmp_path / "Kimi"
    (folder / "sub").mkdir(parents=True)
    (folder / ".cache" / "huggingface").mkdir(parents=True)
    (folder / ".cache" / "huggingface" / "x").write_text("x")
    (folder / "config.json").write_text(json.dumps(samples.KIMI, indent=4))
    (folder / "hf_quant_config.json").write_text(json.dumps(samples.NESTED, indent=2) + "\n")
    (folder / "model.safetensors").write_bytes(b"\2\0\0\0\0\0\0\0{}")
    (folder / "sub" / "chat.jinja").write_text("hello")
    return folder


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_the_overlay_links_everything_and_rewrites_two_files(model: Path) -> None:
    before = digests(model)
    report = patch_folder(model)
    overlay = Path(str(report.target))
    assert report.decision == "patch"
    assert digests(model) == before, "the download is not touched"
    assert [file.path for file in report.files if file.changed] == ["config.json", "hf_quant_config.json"]
    assert json.loads((overlay / "config.json").read_text())["quantization_config"]["kv_cache_scheme"] is None
    assert (overlay / "model.safetensors").readlink() == model / "model.safetensors"
    assert (overlay / "sub" / "chat.jinja").read_text() == "hello"
    assert not (overlay / ".cache").exists()
    assert {file.sha256_after for file in report.files} == {
        hashlib.sha256((overlay / name).read_bytes()).hexdigest() for name in ("config.json", "hf_quant_config.json")
    }
    again = patch_folder(model)
    assert again.to_json() == report.to_json()
    assert patch_folder(model, restore=True).decision == "restore"
    assert not overlay.exists()
    assert digests(model) == before


def test_in_place_keeps_the_original_mode_and_time_and_restores_them(model: Path) -> None:
    before = digests(model)
    config = model / "config.json"
    config.chmod(0o640)
    stat = config.stat()
    report = patch_folder(model, "bfloat16", in_place=True)
    assert report.written
    assert config.stat().st_mode == stat.st_mode
    assert hashlib.sha256(config.read_bytes()).hexdigest() == report.files[0].sha256_after
    assert not list(model.glob("*relaunch*.json")), "no loader's glob may find the original"
    assert patch_folder(model, "bfloat16", in_place=True).decision == "none", "a second run has nothing to do"
    restored = patch_folder(model, restore=True)
    assert {file.path: file.sha256_after for file in restored.files} == {
        name: before[name] for name in ("config.json", "hf_quant_config.json")
    }
    assert digests(model) == before
    assert config.stat().st_mtime_ns == stat.st_mtime_ns


def test_a_hub_cache_is_never_written_through(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "abc"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    blob = blobs / "deadbeef"
    blob.write_text(json.dumps(samples.KIMI))
    before = blob.read_bytes()
    (snapshot / "config.json").symlink_to("../../blobs/deadbeef")
    patch_folder(snapshot, "bfloat16", in_place=True)
    assert blob.read_bytes() == before
    assert not (snapshot / "config.json").is_symlink()
    patch_folder(snapshot, restore=True)
    assert os.readlink(snapshot / "config.json") == "../../blobs/deadbeef"


def test_a_dry_run_writes_nothing_and_shows_the_diff(model: Path) -> None:
    before = digests(model.parent)
    report = patch_folder(model, "bfloat16", dry_run=True)
    assert digests(model.parent) == before
    assert not report.written
    assert '+        "kv_cache_scheme": null,' in report.files[0].diff
    line = next(text for text in report.files[0].diff.splitlines() if text.startswith("@@"))
    lines = (model / "config.json").read_text().splitlines()
    first = int(line.split("-")[1].split(",")[0])
    assert lines[first + 1].strip() == '"kv_cache_scheme": {', "line numbers are those of the file"


def test_what_vllm_takes_is_left(model: Path) -> None:
    report = patch_folder(model, cc="12.0", vllm="0.18.0")
    assert (report.decision, report.written, report.target) == ("none", False, str(model))
    assert not any(file.changed for file in report.files)


def test_sparse_attention_that_needs_fp8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(samples.SPARSE))
    with pytest.raises(Refused, match="FP8 KV alone"):
        patch_folder(tmp_path, "bfloat16", cc="12.0", vllm="0.24.0")
    assert patch_folder(tmp_path, "bfloat16", dry_run=True).decision == "patch", (
        "an edit on request, nothing said of the GPU"
    )


def test_a_draft_model_in_the_folder_is_patched_too(model: Path) -> None:
    (model / "draft").mkdir()
    (model / "draft" / "config.json").write_text(json.dumps(samples.GQA))
    report = patch_folder(model, "bfloat16")
    assert [file.path for file in report.files if file.changed][-1] == "draft/config.json"
    overlay = Path(str(report.target))
    assert json.loads((overlay / "draft" / "config.json").read_text())["quantization_config"]["kv_cache_scheme"] is None


def test_a_broken_file_of_a_folder_inside_is_said_and_left(model: Path) -> None:
    (model / "draft").mkdir()
    (model / "draft" / "config.json").write_text('{"a": ')
    report = patch_folder(model, "bfloat16", dry_run=True)
    assert any("draft/config.json is cut off" in text for text in report.warnings)


def test_both_reports_read_as_text(model: Path) -> None:
    text = str(patch_folder(model, dry_run=True))
    assert text.startswith("patch: The checkpoint asks for an FP8 KV cache")
    assert "or: --kv-cache-dtype bfloat16 instead of the patch" in text
    assert "nothing was written" in text
    samples.safetensors(model / "model.safetensors", {"a": 64})
    assert "verdict" in str(fit_folder(model))


def test_auto_says_what_it_assumed(model: Path) -> None:
    assert "compute capability 12.0 and vLLM 0.16.0" in patch_folder(model, dry_run=True).warnings[0]


def test_what_stands_in_the_way_is_named(model: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no config"):
        patch_folder(tmp_path)
    with pytest.raises(UsageError, match="is no folder"):
        patch_folder(tmp_path / "nothing")
    (tmp_path / "taken").mkdir()
    with pytest.raises(UsageError, match="no overlay of Relaunch"):
        patch_folder(model, "bfloat16", overlay=tmp_path / "taken")
    (model / "config.json").write_text('{"a": ')
    with pytest.raises(DownloadFailed, match="cut off"):
        patch_folder(model)
    assert patch_folder(tmp_path / "taken", restore=True).reason == "nothing was patched here"


def test_the_fit_of_a_folder(model: Path) -> None:
    with pytest.raises(UsageError, match="neither safetensors"):
        fit_folder(model)
    index = model / "model.safetensors.index.json"
    index.write_text('{"metadata": {"total_size": 590850735131}, "weight_map": {}}')
    report = fit_folder(model, vllm="0.16.0", utilization=0.93)
    assert (report.source, report.fit.dtype) == (index.name, "bfloat16"), "patched, so the fit is that of bfloat16"
    data = report.to_json()
    assert (data["loads"], data["bytes_per_token"]) == (False, 70_272)
    samples.safetensors(
        model / "model.safetensors", {"model.norm.weight": 64, "model.layers.0.mlp.up_proj.weight": 640}
    )
    headers = fit_folder(model, vllm="0.18.0")
    assert (headers.weights, headers.source, headers.fit.weights) == (704, "safetensors headers", 64 + 640 / 8)
    assert dict(headers.rows())["verdict"] == "fits"


def test_capabilities_are_written_in_several_ways() -> None:
    assert [parse_capability(text) for text in ("12.0", "sm_120", "SM120a", "9.0", "sm90")] == [
        (12, 0), (12, 0), (12, 0), (9, 0), (9, 0),
    ]  # fmt: skip
    with pytest.raises(UsageError):
        parse_capability("blackwell")


@pytest.mark.skipif(not CASES.is_dir(), reason="the shared cases are not here")
@pytest.mark.parametrize("case", sorted(CASES.glob("*/")) if CASES.is_dir() else [], ids=lambda case: case.name)
def test_published_folders(case: Path, tmp_path: Path) -> None:
    expect = yaml.safe_load((case / "expect.yaml").read_text())
    for name in expect["files"]:
        shutil.copyfile(case / name, tmp_path / name)
    if expect["read_by_vllm"] != "none":
        assert patch_folder(tmp_path, "bfloat16", dry_run=True).reads == expect["read_by_vllm"]
    patch_folder(tmp_path, "bfloat16", in_place=True)
    for name, wanted in expect["files"].items():
        digest = hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()
        assert digest == wanted.get("expected_sha256", wanted["sha256"])
    patch_folder(tmp_path, restore=True)
    for name, wanted in expect["files"].items():
        assert hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() == wanted["sha256"]
