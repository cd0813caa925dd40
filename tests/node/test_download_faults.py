"""A hub that fails, the real huggingface_hub, a real systemd node: each case ends in a whole, verified folder or in a named failure.

All cases run at once on one node, each with a hub, a repository and a folder of its own, through the very steps
that a redeploy takes. What the operator is told is the evidence of the steps, or the error with its remedy.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import socket
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from console.checkpoint.question import question
from console.deploy.step import Context, Satisfied
from console.deploy.steps import step
from console.errors import DownloadFailed
from console.events import Event, Noted
from console.node.facts import Facts, read_facts
from console.node.ssh import SshNode, connect
from console.profile.load import find_profile
from console.rehearsal.checkpoint import make_checkpoint
from console.text import Secret
from tests.node.gpu_box import WHEELS, wheels
from tests.node.lab import Lab, Machine
from tests.unit.fault_hub import FaultHub, fault_hub

pytestmark = pytest.mark.timeout(200)

VENV = "/opt/hub"
ROOM = "/srv/models"
STALL = 3.0
SENTINEL = "hf_SentinelOfTheFaultServer"


@dataclass(frozen=True, slots=True)
class Case:
    """`fails`: what the error says; empty when the folder must become whole. `noted`: what is told on the way."""

    faults: tuple[str, ...]
    fails: str = ""
    noted: str = ""
    token: bool = False
    mount: str = ""
    """Size of a file system of its own for the folder."""


CASES = {
    "stall": Case(("stall",), noted="stalled"),
    "reset": Case(("hub-reset",)),
    "truncate-once": Case(("truncate-once",)),
    "truncate": Case(("truncate",), fails="stands still.*Error while downloading"),
    "short": Case(("short",), fails="shorter than the hub said|cut"),
    "flip-once": Case(("flip-once",), noted="wrong content"),
    "flip": Case(("hub-flip",), fails=r"files of the model are wrong: model-00\d+-of-\d+.safetensors has the right size"),
    "401": Case(("hub-401",), fails=r"valid token \(401\)"),
    "401-with-token": Case(("hub-401",), token=True),
    "403": Case(("hub-403",), fails="behind a licence"),
    "404": Case(("hub-404",), fails=r"no such repository, commit or file \(404\)"),
    "429-once": Case(("429-once",)),
    "429": Case(("api-429",), fails="too many requests"),
    "503-once": Case(("503-once",)),
    "503": Case(("503",), fails=r"an error of its own \(5xx\)", noted="server_error"),
    "503-tree": Case(("api-503",), fails=r"an error of its own \(5xx\)"),
    "disk-full": Case((), fails="the disk is full", mount="3m"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a case: the evidence of each step that was done, the error that ended it, and what was told."""

    evidence: dict[str, str]
    error: DownloadFailed | None
    notes: list[str]
    wrong: list[str]
    """Files of the folder that are not byte for byte what the hub has, in the words of sha256sum."""
    after: str = ""
    """Evidence of a further attempt, where the trouble was taken away."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hub") / "kimi"
    make_checkpoint(folder, "kimi", shards=12)
    return folder


@pytest.fixture(scope="module")
def outcomes(lab: Lab, source: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Outcome]]:
    machine = lab.boot("hubbox")
    machine.put_tree(wheels(tmp_path_factory.mktemp("wheels")), WHEELS)
    machine.ssh(
        f"python3 -m venv {VENV} && {VENV}/bin/pip -q install --disable-pip-version-check --no-index "
        f"--find-links {WHEELS} huggingface_hub && mkdir -p {ROOM}"
    )
    try:
        yield asyncio.run(every_case(machine, source))
    finally:
        lab.halt("hubbox")


async def every_case(machine: Machine, source: Path) -> dict[str, Outcome]:
    gateway = machine.ssh("ip -4 neigh show | cut -d' ' -f1").split()[0]
    async with connect(machine.target()) as node, AsyncExitStack() as stack:
        tasks = {}
        async with asyncio.TaskGroup() as group:
            for name, case in CASES.items():
                listening = stack.enter_context(socket.create_server((gateway, 0)))
                hub = await stack.enter_async_context(fault_hub({f"case/{name}": source}, sock=listening))
                tasks[name] = group.create_task(one_case(machine, node, hub, name, case, source))
        return {name: task.result() for name, task in tasks.items()}


async def one_case(machine: Machine, node: SshNode, hub: FaultHub, name: str, case: Case, source: Path) -> Outcome:
    hub.faults.update(case.faults)
    folder = f"{ROOM}/{name}"
    if case.mount:
        mount = f"mkdir -p {folder} && mount -t tmpfs -o size={case.mount} tmpfs {folder}"
        await asyncio.to_thread(machine.ssh, mount)
    events: list[Event] = []
    ctx = await context(node, hub, name, folder, events, SENTINEL if case.token else "")
    evidence, error = await attempt(ctx)
    after = ""
    if case.mount:
        await asyncio.to_thread(machine.ssh, f"mount -o remount,size=64m {folder}")
        ctx.found.clear()
        await ctx.refresh()
        after = (await attempt(ctx))[0].get("shards", "")
    sums = sums_of(source, folder)
    said = await asyncio.to_thread(machine.ssh, "sha256sum -c --quiet - 2>&1", input=sums.encode(), check=False)
    notes = [event.text for event in events if isinstance(event, Noted)]
    return Outcome(evidence, error, notes, said.splitlines(), after)


def sums_of(source: Path, folder: str) -> str:
    """What `sha256sum -c` takes, for the hub's files where they must lie."""
    return "".join(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {folder}/{path.name}\n" for path in source.iterdir()
    )


async def context(
    node: SshNode, hub: FaultHub, name: str, folder: str, events: list[Event], token: str
) -> Context:  # fmt: skip
    shipped = find_profile("rehearsal")
    model = shipped.model.model_copy(update={"repo": f"case/{name}", "folder": folder, "endpoint": hub.endpoint})
    profile = shipped.model_copy(update={"model": model, "vllm": shipped.vllm.model_copy(update={"venv": VENV})})

    async def confirm(question: str, word: str) -> bool:
        return False

    async def refresh() -> Facts:
        ctx.facts = replace(await read_facts(node, question(profile)), cpus=2)
        return ctx.facts

    ctx = Context(node, profile, await read_facts(node, question(profile)), events.append, confirm, refresh,
                  token=Secret(token), options={"stall_seconds": STALL})  # fmt: skip
    return ctx


async def attempt(ctx: Context) -> tuple[dict[str, str], DownloadFailed | None]:
    """Download and shards as a walk takes them."""
    evidence: dict[str, str] = {}
    try:
        for name in ("download", "shards"):
            chosen = step(name)
            outcome = await chosen.check(ctx)
            if isinstance(outcome, Satisfied):
                evidence[name] = outcome.evidence
                continue
            await chosen.apply(ctx)
            evidence[name] = await chosen.verify(ctx)
            await ctx.refresh()
    except DownloadFailed as error:
        return evidence, error
    return evidence, None


@pytest.mark.parametrize("name", CASES)
def test_whole_or_named(outcomes: dict[str, Outcome], name: str) -> None:
    case, found = CASES[name], outcomes[name]
    if case.fails:
        assert found.error is not None
        assert re.search(case.fails, found.error.message), found.error.message
        assert found.error.remedy
        assert found.error.code == 6
    else:
        assert found.error is None, found.error and found.error.message
        assert found.evidence["shards"].endswith("sha256 match")
        assert found.wrong == []
    assert not case.noted or any(case.noted in note for note in found.notes), found.notes
    assert SENTINEL not in repr(found)


def test_a_disk_that_got_room_again_is_gone_on_with(outcomes: dict[str, Outcome]) -> None:
    found = outcomes["disk-full"]
    assert found.after.endswith("sha256 match")
    assert found.wrong == []
