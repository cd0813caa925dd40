"""The steps download, shards and patch over SSH on the practice node: done, satisfied, damaged, refused."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import Any

import pytest

from console.checkpoint.forecast import forecast
from console.checkpoint.local import patch_folder
from console.checkpoint.overlay import verify_overlay
from console.checkpoint.patch import PatchOutcome, planned
from console.deploy.release import draft as draft_release
from console.deploy.rollback import what_lacks
from console.deploy.step import Needed, Satisfied
from console.deploy.steps import step
from console.deploy.unit import serve_argv
from console.errors import DownloadFailed, RelaunchError, Unreachable
from console.events import Noted, Progressed
from console.node.ssh import SshNode
from console.rehearsal.practice import Practice
from tests.rehearsal.files_bench import Bench, bench, files

__all__ = ["files"]

STEPS = ("space", "download", "shards", "patch")
NewPractice = Callable[..., AbstractAsyncContextManager[Practice]]


def there(folder: Path) -> list[str]:
    return sorted(os.listdir(folder)) if folder.is_dir() else []


def links_in(folder: Path) -> int:
    """Shards that are links."""
    return sum((folder / name).is_symlink() for name in there(folder) if name.endswith(".safetensors"))


@pytest.fixture
def count_execs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every command that is run on any SSH node, by its first words."""
    seen: list[str] = []
    run, read, write = SshNode.run, SshNode.read, SshNode.write

    async def counted_run(self: SshNode, argv: tuple[str, ...], **options: Any) -> Any:
        seen.append(" ".join(argv)[:60])
        return await run(self, argv, **options)

    async def counted_read(self: SshNode, path: str, **options: Any) -> bytes:
        seen.append(f"read {path}")
        return await read(self, path, **options)

    async def counted_write(self: SshNode, path: str, data: bytes, **options: Any) -> None:
        seen.append(f"write {path}")
        await write(self, path, data, **options)

    monkeypatch.setattr(SshNode, "run", counted_run)
    monkeypatch.setattr(SshNode, "read", counted_read)
    monkeypatch.setattr(SshNode, "write", counted_write)
    return seen


async def test_from_nothing_to_a_patched_overlay_and_then_satisfied(files: Bench, count_execs: list[str]) -> None:
    ctx = files.ctx
    assert not planned(ctx).known
    assert "to fetch" in await files.bring_about("space")
    assert await files.bring_about("download") == "119/119 shards, 7.2 MB" or files.folder.exists()
    assert any(isinstance(event, Progressed) and event.unit == "bytes" for event in files.events)
    shards = await files.bring_about("shards")
    assert shards.startswith("119/119 shards, ")
    assert shards.endswith("sha256 match")
    patched = await files.bring_about("patch")
    assert patched.startswith("KV bfloat16 by overlay ")
    outcome = ctx.found["patch"]
    assert isinstance(outcome, PatchOutcome)
    overlay = Path(outcome.model_path)
    assert overlay.parent == Path(ctx.facts.paths.state) / "overlays"
    config = json.loads((overlay / "config.json").read_text())
    assert config["quantization_config"]["kv_cache_scheme"] is None
    assert json.loads((files.folder / "config.json").read_text())["quantization_config"]["kv_cache_scheme"]
    assert links_in(overlay) == 119
    assert "rewritten files match" in await verify_overlay(ctx.node, outcome.model_path)

    await files.anew()
    assert planned(ctx) == outcome, "a plan knows the overlay from facts alone"
    ctx.found.clear()
    count_execs.clear()
    for name in STEPS:
        assert isinstance(await step(name).check(ctx), Satisfied), name
    assert len(count_execs) == 1, count_execs
    found = forecast(ctx)
    assert found is not None
    assert found.loads


async def test_damage_is_found_and_only_that_is_fetched_again(files: Bench) -> None:
    for name in ("download", "shards"):
        await files.bring_about(name)
    shards = sorted(files.folder.glob("*.safetensors"))
    inodes = {path.name: path.stat().st_ino for path in shards}
    data = bytearray(shards[7].read_bytes())
    data[-1] ^= 1
    shards[7].write_bytes(data)
    await files.anew()
    assert isinstance(await step("download").check(files.ctx), Satisfied), "the size is right"
    needed = await step("shards").check(files.ctx)
    assert isinstance(needed, Needed)
    assert needed.changes[0].text.startswith("check 1 file ")
    assert (await files.bring_about("shards")).endswith("sha256 match")
    assert any(isinstance(event, Noted) and shards[7].name in event.text for event in files.events)
    changed = {name for name, inode in inodes.items() if (files.folder / name).stat().st_ino != inode}
    assert changed <= {shards[7].name}


async def test_a_shard_that_the_hub_does_not_have_is_named(new_practice: NewPractice) -> None:
    from tests.rehearsal.conftest import log_in

    async with (
        new_practice(faults=("missing-shard",)) as practice,
        log_in(practice) as node,
        bench(practice, node) as files,
    ):
        await files.bring_about("download")
        with pytest.raises(DownloadFailed, match="named by the index and is not there"):
            await files.bring_about("shards")


async def test_a_download_that_stands_still_goes_on(new_practice: NewPractice) -> None:
    from tests.rehearsal.conftest import log_in

    async with new_practice(faults=("stall",)) as practice, log_in(practice) as node, bench(practice, node) as files:
        files.ctx.options = {"stall_seconds": 2}
        assert (await files.bring_about("download")).startswith("119/119 shards")
        assert any(isinstance(event, Noted) and "stalled" in event.text for event in files.events)


async def test_an_overlay_that_was_touched_is_noticed_and_made_again(files: Bench) -> None:
    for name in ("download", "shards", "patch"):
        await files.bring_about(name)
    outcome = files.ctx.found["patch"]
    overlay = Path(outcome.model_path)
    (overlay / "config.json").write_bytes((files.folder / "config.json").read_bytes())
    (overlay / "tokenizer_config.json").unlink(missing_ok=True)
    with pytest.raises(RelaunchError, match="is not what was built"):
        await verify_overlay(files.ctx.node, outcome.model_path)
    await files.anew()
    assert isinstance(await step("patch").check(files.ctx), Needed)
    await files.bring_about("patch")
    assert "rewritten files match" in await verify_overlay(files.ctx.node, outcome.model_path)


async def test_undo_removes_the_overlay_that_was_made(files: Bench) -> None:
    for name in ("download", "shards", "patch"):
        await files.bring_about(name)
    overlay = Path(files.ctx.found["patch"].model_path)
    await step("patch").undo(files.ctx)
    assert links_in(overlay) == 0
    assert list(there(overlay.parent)) == []
    assert (files.folder / "config.json").exists()


async def test_a_wrong_commit_ends_with_its_reason(practice: Practice, practice_node: SshNode) -> None:
    async with bench(practice, practice_node) as files:
        model = files.ctx.profile.model.model_copy(update={"revision": "f" * 40})
        files.ctx.profile = files.ctx.profile.model_copy(update={"model": model})
        await files.ctx.refresh()
        with pytest.raises(DownloadFailed, match="404") as caught:
            await files.bring_about("space")
        assert "revision" in caught.value.remedy


async def test_a_full_disk_is_named_and_what_was_fetched_stays(new_practice: NewPractice) -> None:
    from tests.rehearsal.conftest import log_in

    async with (
        new_practice(faults=("disk-full",)) as practice,
        log_in(practice) as node,
        bench(practice, node) as files,
    ):
        with pytest.raises(DownloadFailed, match="the disk is full"):
            await files.bring_about("download")
        await files.anew()
        assert any(name.endswith(".safetensors") for name in there(files.folder))


async def test_a_lost_link_loses_nothing(new_practice: NewPractice) -> None:
    from tests.rehearsal.conftest import log_in

    async with new_practice(faults=("drop",)) as practice, log_in(practice) as node, bench(practice, node) as files:
        with suppress(Unreachable):
            await files.bring_about("download")
        async with asyncio.timeout(60):
            while not node.link().up:  # noqa: ASYNC110 - the link comes back by itself; the contract has no event for it
                await asyncio.sleep(0.1)
        await files.anew()
        assert (await files.bring_about("download")).startswith("119/119 shards")


class TestInPlace:
    """On request the download itself is edited, and everything goes back to what it was."""

    @staticmethod
    async def asked(files: Bench) -> None:
        kv = files.ctx.profile.kv_cache.model_copy(update={"in_place": True})
        files.ctx.profile = files.ctx.profile.model_copy(update={"kv_cache": kv})
        for name in ("download", "shards"):
            await files.bring_about(name)

    async def test_edited_once_then_satisfied_and_restored(self, files: Bench) -> None:
        await self.asked(files)
        config = files.folder / "config.json"
        original = config.read_bytes()
        needed = await step("patch").check(files.ctx)
        assert isinstance(needed, Needed)
        assert "its original kept beside it" in needed.changes[0].text
        assert '-        "kv_cache_scheme": {' in needed.changes[0].diff
        assert config.read_bytes() == original, "a check changes nothing"
        evidence = await files.bring_about("patch")
        assert evidence.startswith("KV bfloat16 in place: ")
        assert files.ctx.found["patch"].model_path == str(files.folder)
        assert json.loads(config.read_text())["quantization_config"]["kv_cache_scheme"] is None
        assert config.with_name("config.json.before-relaunch").read_bytes() == original
        rewritten = dict(files.ctx.found["patch"].rewritten)
        assert rewritten[str(config)] == hashlib.sha256(config.read_bytes()).hexdigest()
        await files.anew()
        await step("patch").check(files.ctx)
        assert files.ctx.found["patch"].rewritten == rewritten, "another run knows what was rewritten before it"
        assert there(Path(files.ctx.facts.paths.state) / "overlays") == []

        await files.anew()
        for name in STEPS:
            assert isinstance(await step(name).check(files.ctx), Satisfied), name
        restored = patch_folder(files.folder, restore=True)
        assert [file.path for file in restored.files] == ["config.json", "hf_quant_config.json"]
        assert config.read_bytes() == original
        await files.anew()
        assert isinstance(await step("shards").check(files.ctx), Satisfied), "the very files that were checked"
        assert isinstance(await step("patch").check(files.ctx), Needed)

    async def test_a_new_download_reverts_it_and_the_step_sees_that(self, files: Bench) -> None:
        await self.asked(files)
        config = files.folder / "config.json"
        original = config.read_bytes()
        await files.bring_about("patch")
        sorted(files.folder.glob("*.safetensors"))[3].unlink()
        await files.anew()
        assert (await files.bring_about("download")).startswith("119/119 shards")
        assert config.read_bytes() == original, "huggingface_hub wants its own file"
        await files.anew()
        assert isinstance(await step("patch").check(files.ctx), Needed)
        await files.bring_about("patch")
        assert config.with_name("config.json.before-relaunch").read_bytes() == original

    async def test_undo_brings_the_original_back(self, files: Bench) -> None:
        await self.asked(files)
        config = files.folder / "config.json"
        original = config.read_bytes()
        await files.bring_about("patch")
        assert config.read_bytes() != original
        await step("patch").undo(files.ctx)
        assert config.read_bytes() == original
        assert [name for name in there(files.folder) if name.endswith(".before-relaunch")] == []


def snapshot_of(folder: Path, cache: Path) -> dict[str, bytes]:
    """Turn a download into what `hf download` without --local-dir leaves: links into a folder of blobs. The blobs."""
    cache.mkdir(parents=True)
    for path in [path for path in folder.iterdir() if path.is_file()]:
        blob = cache / hashlib.sha256(path.name.encode()).hexdigest()
        path.rename(blob)
        path.symlink_to(os.path.relpath(blob, folder))
    return {path.name: path.read_bytes() for path in cache.iterdir()}


@pytest.mark.parametrize("in_place", [False, True])
async def test_links_into_a_hub_cache_are_never_written_through(files: Bench, in_place: bool) -> None:
    await files.bring_about("download")
    blobs = snapshot_of(files.folder, files.root / "srv/hub/blobs")
    kv = files.ctx.profile.kv_cache.model_copy(update={"in_place": in_place})
    files.ctx.profile = files.ctx.profile.model_copy(update={"kv_cache": kv})
    await files.anew()
    for name in STEPS:
        await files.bring_about(name)
    served = Path(files.ctx.found["patch"].model_path)
    assert json.loads((served / "config.json").read_text())["quantization_config"]["kv_cache_scheme"] is None
    assert not (served / "config.json").is_symlink()
    assert {path.name: path.read_bytes() for path in (files.root / "srv/hub/blobs").iterdir()} == blobs
    await step("patch").undo(files.ctx)
    assert (files.folder / "config.json").is_symlink()
    assert {path.name: path.read_bytes() for path in (files.root / "srv/hub/blobs").iterdir()} == blobs


async def test_a_draft_model_gets_an_overlay_of_its_own(files: Bench) -> None:
    draft = files.root / "srv/models/Kimi-Draft"
    draft.mkdir(parents=True)
    for name in ("download", "shards"):
        await files.bring_about(name)
    for name in ("config.json", "hf_quant_config.json"):
        (draft / name).write_bytes((files.folder / name).read_bytes())
    (draft / "model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    before = {path.name: path.read_bytes() for path in draft.iterdir()}
    flags = {**files.ctx.profile.serve.flags}
    flags["speculative-config"] = {"method": "mtp", "model": "~/srv/models/Kimi-Draft", "num_speculative_tokens": 3}
    serve = files.ctx.profile.serve.model_copy(update={"flags": flags})
    files.ctx.profile = files.ctx.profile.model_copy(update={"serve": serve})
    await files.anew()
    needed = await step("patch").check(files.ctx)
    assert isinstance(needed, Needed)
    assert len(needed.changes) == 4, "two files of the model, two of the draft"
    evidence = await files.bring_about("patch")
    assert evidence.count("config.json") == 4
    outcome = files.ctx.found["patch"]
    config = outcome.flags["speculative-config"]
    assert (config["method"], config["num_speculative_tokens"]) == ("mtp", 3)
    assert outcome.drafts == (config["model"],)
    patched = Path(config["model"])
    assert patched.parent == Path(files.ctx.facts.paths.state) / "overlays"
    assert json.loads((patched / "config.json").read_text())["quantization_config"]["kv_cache_scheme"] is None
    assert (patched / "model.safetensors").is_symlink()
    assert {path.name: path.read_bytes() for path in draft.iterdir()} == before
    argv = serve_argv(files.ctx.profile, files.ctx.facts, outcome)
    assert any(config["model"] in word for word in argv)
    for overlay in outcome.overlays:
        assert "rewritten files match" in await verify_overlay(files.ctx.node, overlay)

    await files.anew()
    assert isinstance(await step("patch").check(files.ctx), Satisfied)
    release = draft_release(files.ctx, 1)
    assert len(release.overlay) == 4, "a release holds the hashes of the draft's overlay too"
    assert not any("overlays" in text for text in await what_lacks(files.ctx, release))
    (patched / "config.json").write_bytes(before["config.json"])
    lacking = "\n".join(await what_lacks(files.ctx, release))
    assert f"{patched}/config.json is not what was served: sha256 " in lacking
    await files.anew()
    assert isinstance(await step("patch").check(files.ctx), Needed), "the draft's overlay is looked at as well"
    await files.bring_about("patch")
    await step("patch").undo(files.ctx)
    assert there(patched) == []


async def test_surplus_files_are_named_and_left_and_deep_reads_all_again(files: Bench) -> None:
    for name in ("download", "shards"):
        await files.bring_about(name)
    stranger = files.folder / "consolidated.safetensors"
    stranger.write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    shard = sorted(files.folder.glob("model-*.safetensors"))[5]
    info = shard.stat()
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    with shard.open("r+b") as file:  # the same inode, size and mtime: what a disk does that forgets
        file.write(data)
    os.utime(shard, ns=(info.st_atime_ns, info.st_mtime_ns))
    await files.anew()
    assert isinstance(await step("shards").check(files.ctx), Satisfied), "nothing shows in a listing"
    files.ctx.options = {"deep": True}
    needed = await step("shards").check(files.ctx)
    assert isinstance(needed, Needed)
    assert needed.changes[0].text.startswith("read all 128 files again")
    evidence = await files.bring_about("shards")
    assert "1 file that the index does not name: consolidated.safetensors" in evidence
    assert stranger.exists()
    assert any(isinstance(event, Noted) and shard.name in event.text for event in files.events)
    assert shard.read_bytes()[-1] != data[-1]
