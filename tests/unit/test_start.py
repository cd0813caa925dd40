"""A start followed to its end: the ends told apart, from journal entries and unit states alone."""

from __future__ import annotations

import asyncio
import dataclasses
import types
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from console.deploy import evidence, probe, start
from console.deploy.starting import Ended, Starting
from console.deploy.step import Context
from console.errors import NotReady, RelaunchError, UnitFailed, Unreachable
from console.events import CauseFound, Event, Progressed, StageReached
from console.node import journal, systemd
from console.node.facts import Facts, UnitState
from console.node.journal import Entry
from console.profile.model import Engine, Model, Profile, Ready, Serve, Service

UNIT = "k.service"
OURS, OTHER = "a" * 32, "b" * 32
STATE = UnitState(
    name=UNIT, load="loaded", active="active", sub="running", result="success", main_pid=7, invocation=OURS, cgroup="",
    fragment="", text=None, need_reload=False, enabled="", restarts=0,
)  # fmt: skip
DEAD = replace(STATE, active="failed", sub="failed", result="exit-code", main_pid=0, exit_kind="exited", exit_status=1)
LOADING = [
    "(APIServer pid=7) INFO 11-01 10:00:00 [utils.py:1] non-default args: {'model': '/m'}",
    "(EngineCore_DP0 pid=8) INFO 11-01 10:00:01 [core.py:1] Initializing a V1 LLM engine (v0.16.0) with config: x",
    "(Worker_TP0 pid=9) INFO 11-01 10:00:02 [parallel_state.py:1] world_size=8 rank=0 local_rank=0 backend=nccl",
    "(Worker_TP0 pid=9) INFO 11-01 10:00:03 [gpu_model_runner.py:1] Starting to load model /m...",
]
READY_LINES = [
    "(APIServer pid=7) INFO 11-01 10:05:00 [api_server.py:1] Starting vLLM API server 0 on http://127.0.0.1:8000",
    "(APIServer pid=7) INFO:     Started server process [7]",
    "(APIServer pid=7) INFO:     Waiting for application startup.",
    "(APIServer pid=7) INFO:     Application startup complete.",
]
FP8 = (
    "(Worker_TP0 pid=9) ERROR 11-01 10:00:04 [multiproc_executor.py:1] ValueError: No valid attention backend found for cuda "
    "with AttentionSelectorConfig(head_size=576, dtype=torch.bfloat16, kv_cache_dtype=fp8_e4m3, use_mla=True, "
    "use_sparse=False). Reasons: {TRITON_MLA: [kv_cache_dtype not supported]}."
)


def entries(lines: Sequence[str], *, source: str = "python3", invocation: str = OURS) -> list[Entry]:
    pid = 1 if source == "systemd" else 7
    return [Entry(f"c{n}", 1.0 + n, line, pid, 6, source, invocation) for n, line in enumerate(lines)]


class Node:
    """As much of a node as a follow touches; its journal and unit states are scripted by the test."""

    name = "n"


class Script:
    """Sources that give what they are told and then stay open, or end as told."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, lines: Sequence[Entry | Exception], states: Sequence[UnitState]
    ) -> None:
        self.lines, self.states = lines, states
        self.read = asyncio.Event()
        self.asked: list[dict[str, Any]] = []
        monkeypatch.setattr(journal, "follow", self.follow)
        monkeypatch.setattr(systemd, "watch_unit", self.watch)

    @asynccontextmanager
    async def follow(self, node: Any, unit: str, **asked: Any) -> AsyncIterator[AsyncIterator[Entry]]:
        self.asked.append(asked)

        async def items() -> AsyncIterator[Entry]:
            for line in self.lines:
                if isinstance(line, Exception):
                    raise line
                yield line
            self.read.set()
            await asyncio.Event().wait()

        yield items()

    @asynccontextmanager
    async def watch(self, node: Any, unit: str) -> AsyncIterator[AsyncIterator[UnitState]]:
        async def items() -> AsyncIterator[UnitState]:
            for number, state in enumerate(self.states):
                if number:
                    await self.read.wait()
                yield state
            await asyncio.Event().wait()

        yield items()


@dataclasses.dataclass
class Told:
    ctx: Context
    events: list[Event]

    def of(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    values: dict[str, Any] = {field.name: None for field in dataclasses.fields(Facts)}
    facts = Facts(
        **(values | {"files": {}, "units": {}, "expanded": {}, "kernel": (), "kernel_log": (), "listeners": ()})
    )
    stalls = {
        "argument_parsing": 0.2,
        "nccl_init": 0.2,
        "model_loading": 0.2,
        "weights_loading": 0.2,
        "engine_init": 0.2,
    }
    profile = Profile(
        name="p",
        model=Model(repo="o/m", revision="0" * 40, folder="/m", served_name="kimi"),
        vllm=Engine(version="0.16.0", venv="/v"),
        serve=Serve(tensor_parallel_size=8),
        service=Service(unit=UNIT),
        ready=Ready(stalls=stalls),
    )
    events: list[Event] = []
    ctx = Context(Node(), profile, facts, events.append, None, None)  # type: ignore[arg-type]

    async def look(ctx: Context, unit: str) -> None:
        return None

    monkeypatch.setattr(evidence, "look", look)
    return Told(ctx, events)


async def follow(told: Told) -> Starting:
    starting = start.starting_of(told.ctx, UNIT)
    starting.former = OTHER
    told.ctx.found["launch"] = starting
    await start.follow(told.ctx, starting, step="launch")
    return starting


async def ending(told: Told) -> tuple[Ended, RelaunchError]:
    with pytest.raises(Ended) as caught:
        await follow(told)
    return caught.value, await evidence.explain(told.ctx, caught.value, step="launch")


async def test_ready(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = [
        f"(Worker_TP0 pid=9) Loading safetensors checkpoint shards: {n}% Completed | {n}/119 [00:0{n}<00:01]"
        for n in range(1, 4)
    ]
    Script(monkeypatch, entries([*LOADING, *shards, *READY_LINES]), [STATE])
    starting = await follow(told)
    assert starting.ready
    assert starting.invocation == OURS
    stages = [event.stage for event in told.of(StageReached)]
    assert stages[-1] == "ready"
    assert told.of(Progressed)[-1].total == 119
    assert not told.of(CauseFound)


async def test_a_crash_tells_the_first_cause_once(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    Script(monkeypatch, entries([*LOADING, FP8]), [STATE, DEAD])
    ended, error = await ending(told)
    assert ended.kind == "crashed"
    assert isinstance(error, UnitFailed)
    assert "No valid attention backend" in error.message
    (cause,) = told.of(CauseFound)
    assert cause.category == "attention_backend_unsupported_kv_dtype"
    assert cause.fix.startswith("kv-")
    assert told.ctx.found["diagnosis"].fix == cause.fix


async def test_a_cause_is_told_while_the_process_still_lives(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "GRACE", 0.5)
    Script(monkeypatch, entries([*LOADING, FP8]), [STATE])
    ended, error = await ending(told)
    assert ended.kind == "failed"
    assert isinstance(error, UnitFailed)
    assert len(told.of(CauseFound)) == 1


async def test_a_restart_does_not_hide_a_crash(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    again = replace(
        STATE, active="activating", sub="auto-restart", result="exit-code", exit_kind="exited", exit_status=1
    )
    for second in (again, replace(STATE, restarts=1), replace(STATE, invocation=OTHER)):
        Script(monkeypatch, entries(LOADING), [STATE, second])
        ended, error = await ending(told)
        assert ended.kind == "restarted"
        assert isinstance(error, UnitFailed)


async def test_never_started(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    said = entries([f"{UNIT}: Failed to locate executable /v/bin/vllm: No such file or directory"], source="systemd")
    Script(monkeypatch, said, [STATE, replace(DEAD, exit_status=203)])
    _ended, error = await ending(told)
    assert isinstance(error, UnitFailed)
    assert "203/EXEC" in error.message
    (cause,) = told.of(CauseFound)
    assert cause.category == "never_started"
    assert "Failed to locate executable" in cause.text


async def test_a_job_that_never_runs(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "FIRST_SIGN", 0.1)
    Script(monkeypatch, [], [replace(STATE, active="inactive", sub="dead", invocation=OTHER)])
    ended, error = await ending(told)
    assert ended.kind == "never-started"
    assert isinstance(error, UnitFailed)


async def test_a_silent_process_has_no_log(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    Script(monkeypatch, entries(["Started k.service."], source="systemd"), [STATE])
    ended, error = await ending(told)
    assert ended.kind == "no-log"
    assert isinstance(error, NotReady)
    assert "wrote nothing" in error.message


async def test_hung_names_the_stage(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    nccl = "(Worker_TP0 pid=9) INFO 11-01 10:00:03 [pynccl.py:111] vLLM is using nccl==2.27.3"
    Script(monkeypatch, entries([*LOADING[:3], nccl]), [STATE])
    ended, error = await ending(told)
    assert ended.kind == "hung"
    assert isinstance(error, NotReady)
    assert "nccl_init" in error.message
    assert told.of(CauseFound)[0].remedy


async def test_the_same_line_again_and_again_is_no_movement(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    beats = [
        f"(EngineCore_DP0 pid=8) INFO 11-01 10:{n:02}:00 [shm_broadcast.py:1] No available shared memory broadcast block found"
        " in 60 seconds."
        for n in range(50)
    ]
    Script(monkeypatch, entries([*LOADING, *beats]), [STATE])
    starting = start.starting_of(told.ctx, UNIT)
    starting.former = OTHER
    with pytest.raises(Ended) as caught:
        await start.follow(told.ctx, starting, step="launch")
    assert caught.value.kind == "hung"
    assert len(starting.seen) <= 3


async def test_a_lost_link_is_no_failure_and_goes_on_at_the_cursor(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    Script(monkeypatch, [*entries(LOADING), Unreachable("link")], [STATE])
    with pytest.raises(Unreachable):
        await follow(told)
    first: Starting = told.ctx.found["launch"]
    again = start.adopt(told.ctx, STATE)
    assert again is first
    script = Script(monkeypatch, entries(READY_LINES), [STATE])
    await start.follow(told.ctx, again, step="launch")
    assert script.asked == [{"invocation": OURS, "cursor": "c3"}]
    assert again.ready


async def test_evidence_is_captured_redacted_and_private(
    told: Told, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    secret = "hf_" + "a" * 30
    told.ctx.options = {"evidence_dir": tmp_path / "run"}
    Script(monkeypatch, entries([*LOADING, f"token {secret} \x1b[31mred", FP8]), [STATE, DEAD])
    await ending(told)
    log = (tmp_path / "run/journal.log").read_text()
    assert FP8 in log
    assert secret not in log
    assert "\x1b" not in log
    assert (tmp_path / "run/cause.json").stat().st_mode & 0o077 == 0


async def test_a_server_that_answers_is_ready_though_its_log_never_says_so(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """uvicorn was told to be quiet, or journald dropped the line: without /health this would be a hang."""
    Script(monkeypatch, entries([*LOADING, *READY_LINES[:1]]), [STATE])
    statuses = iter([None, 503, 200])

    async def health(http: Any) -> int | None:
        return next(statuses)

    monkeypatch.setattr(probe, "health", health)
    monkeypatch.setattr(start, "HEALTH_SOON", 0.01)
    monkeypatch.setattr(told.ctx, "node", types.SimpleNamespace(name="n", http=lambda port: port))
    starting = start.starting_of(told.ctx, UNIT)
    async with asyncio.timeout(60):
        await start.follow(told.ctx, starting, step="launch", port=8000)
    assert starting.ready
    assert [event.stage for event in told.of(StageReached)][-2:] == ["http_starting", "ready"]
    assert "/health answers" in told.of(StageReached)[-1].text
