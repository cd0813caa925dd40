"""The step space over SSH on the practice node: what goes on the operator's word, what stays, what an interruption leaves."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from console.deploy.step import Needed, Satisfied
from console.deploy.steps import space, step
from console.errors import Refused
from console.events import Event, Noted, Progressed
from tests.rehearsal.files_bench import Bench, files

__all__ = ["files"]


class TestSpace:
    """Old folders go on the operator's word, and never one that is in use."""

    @staticmethod
    async def cramped(files: Bench, *may_remove: str) -> Path:
        """Room that is there only when `Old-Model` is gone."""
        old = files.root / "srv/models/Old-Model"
        old.mkdir(parents=True)
        (old / "config.json").write_text("{}")
        (old / "model.safetensors").write_bytes(os.urandom(1 << 20) * 20)
        files.room = lambda: 10**6 if old.exists() else 10**9
        space = files.ctx.profile.space.model_copy(update={"may_remove": may_remove})
        files.ctx.profile = files.ctx.profile.model_copy(update={"space": space})
        await files.ctx.refresh()
        return old

    async def test_a_named_folder_is_removed_when_confirmed(self, files: Bench) -> None:
        old = await self.cramped(files, "~/srv/models/GLM-5-NVFP4", "~/srv/models/Old-Model")
        with pytest.raises(Refused, match="lacking"):
            await step("space").check(files.ctx)
        old.joinpath("more").write_bytes(os.urandom(1 << 20) * 100)
        await files.ctx.refresh()
        needed = await step("space").check(files.ctx)
        assert isinstance(needed, Needed)
        assert "Old-Model" in needed.changes[-1].text
        await step("space").apply(files.ctx)
        assert files.words == ["Old-Model"], "the serving model is not even asked about"
        assert not old.exists()
        assert "to fetch" in await step("space").verify(files.ctx)

    async def test_a_removal_that_is_interrupted_tells_what_it_freed_and_is_gone_on_with(
        self, files: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        old = await self.cramped(files, "~/srv/models/Old-Model")
        for number in range(5):
            (old / f"part{number}").write_bytes(b"x" * (1 << 20))
        monkeypatch.setattr(space, "PIECE", 0.0)  # one file a piece
        emit = files.ctx.emit

        def interrupt(event: Event) -> None:
            emit(event)
            if isinstance(event, Progressed) and event.done:
                raise asyncio.CancelledError

        files.ctx.emit = interrupt
        with pytest.raises(asyncio.CancelledError):
            await step("space").apply(files.ctx)
        files.ctx.emit = emit
        (told,) = (event.text for event in files.events if isinstance(event, Noted) and "interrupted" in event.text)
        assert told.startswith(f"removed {old}, ")
        assert not old.exists(), "no half model under its name"
        half = old.with_name("Old-Model.relaunch-removing")
        assert 0 < len(list(half.iterdir())) < 7

        await files.ctx.refresh()
        needed = await step("space").check(files.ctx)
        assert isinstance(needed, Needed), "there is room enough by now, and half a model all the same"
        assert "go on removing ~/srv/models/Old-Model" in needed.changes[0].text
        await step("space").apply(files.ctx)
        assert files.words == ["Old-Model"], "the word was given before"
        assert [path.name for path in old.parent.iterdir() if path.name.startswith("Old")] == []
        await files.ctx.refresh()
        assert isinstance(await step("space").check(files.ctx), Satisfied)
        last = [event.text for event in files.events if isinstance(event, Noted) and "freed" in event.text][-1]
        assert "26.2 MB freed" in last or "26.3 MB freed" in last, "all of it, with what the first run freed"

    async def test_nothing_goes_without_the_word(self, files: Bench) -> None:
        old = await self.cramped(files, "~/srv/models/Old-Model")
        files.agrees = False
        with pytest.raises(Refused, match="not confirmed"):
            await step("space").apply(files.ctx)
        assert (old / "model.safetensors").exists()

    async def test_a_folder_that_serves_stays(self, files: Bench) -> None:
        await self.cramped(files, "~/srv/models/GLM-5-NVFP4")
        with pytest.raises(Refused, match="lacking"):
            await step("space").apply(files.ctx)
        assert any(isinstance(event, Noted) and "unit file" in event.text for event in files.events), files.events
        assert (files.root / "srv/models/GLM-5-NVFP4/config.json").exists()
        assert files.words == []

    async def test_too_little_room_is_refused_before_anything_is_fetched(self, files: Bench) -> None:
        await self.cramped(files)
        with pytest.raises(Refused, match="lacking"):
            await step("space").check(files.ctx)
