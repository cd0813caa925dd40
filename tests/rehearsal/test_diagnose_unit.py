"""`relaunch diagnose --node N --unit U` on the practice node: a unit that crashed, one that hangs, one that is ready."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from console.autopsy import explain_unit
from console.errors import UsageError
from console.node import journal
from console.triage import load_rules
from tests.rehearsal import launch_node as lab

OURS = "vllm-kimi.service"


async def until(node: lab.Deployment, text: str) -> None:
    """Wait for a line of the unit's journal; systemd's own lines count."""
    async with asyncio.timeout(60), journal.follow(node.node, OURS) as entries:
        async for entry in entries:
            if text in entry.message:
                return


async def test_a_crashed_unit_is_explained_with_what_systemd_knows(tmp_path: Path) -> None:
    async with lab.deployment(tmp_path / "p", faults=["fp8-kv"]) as node:
        await node.systemctl("start", "--no-block", OURS)
        await until(node, "Main process exited")
        await node.systemctl("stop", OURS)  # or it would be starting again
        found = await explain_unit(node.node, OURS, load_rules())
        assert found.outcome == "failed"
        assert found.category == "attention_backend_unsupported_kv_dtype"
        assert found.fix == "kv-patch"
        assert found.cause is not None
        assert found.cause.process
        assert "Worker" in found.cause.process


async def test_a_unit_that_says_nothing_any_more_is_hung(tmp_path: Path) -> None:
    rules = load_rules().with_stalls({"nccl_init": 0.0})
    async with lab.deployment(tmp_path / "p", faults=["hang"]) as node:
        await node.systemctl("start", "--no-block", OURS)
        await until(node, "is using nccl")
        found = await explain_unit(node.node, OURS, rules)
        assert found.outcome == "hung"
        assert found.stage == "nccl_init"
        assert found.silent_seconds is not None
        patient = await explain_unit(node.node, OURS, load_rules())
        assert patient.outcome == "unfinished", "it may still be joining its ranks"


async def test_a_ready_unit_is_ready_whatever_it_said_before(tmp_path: Path) -> None:
    async with lab.deployment(tmp_path / "p") as node:
        await node.systemctl("start", "--no-block", OURS)
        await until(node, "Application startup complete")
        found = await explain_unit(node.node, OURS, load_rules())
        assert found.outcome == "ready"
        assert found.cause is None
        assert found.evidence == ()


async def test_a_unit_that_is_not_there(tmp_path: Path) -> None:
    async with lab.deployment(tmp_path / "p") as node:
        with pytest.raises(UsageError, match="has no unit"):
            await explain_unit(node.node, "vllm-nothing.service", load_rules())
