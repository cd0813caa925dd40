"""Preflight: each trouble of the machine gives its finding, refusals come together and end with code 3."""

from __future__ import annotations

import getpass
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from console.checkpoint.fit import Alternative, Fit
from console.checkpoint.forecast import finding, fit_finding
from console.deploy import access, checks, node_flags
from console.deploy.flags import cache_path
from console.deploy.step import Context, Satisfied
from console.deploy.steps.preflight import STEP
from console.errors import ExitCode, Refused
from console.events import Event, Found
from console.node.base import Argv, Done, Line, LinkState, Result
from console.node.facts import Disk, Facts
from console.node.gpu import GpuFinding
from console.node.local import LocalNode
from console.node.script import ask
from console.profile.model import Profile
from tests.unit.profile_samples import (
    facts,
    gpu,
    gpu_process,
    listener,
    profile,
    sample,
    unit_state,
    venv,
)

REACHED = {"user": True, "file": "good", "parent": ["/srv", ""], "reach": []}


class Quiet:
    """A node that answers only what the account may reach: preflight must get by on the facts for the rest. `asked` records
    what would have been run beside that."""

    name = "box"
    read_only = False

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer
        self.asked: list[Argv] = []
        self.written: dict[str, bytes] = {}

    def link(self) -> LinkState:
        return LinkState(True)

    async def run(
        self, argv: Argv, *, input: bytes | None = None, timeout: float, sudo: bool = False, mutates: bool = True
    ) -> Result:
        if b"<relaunch access>" in (input or b""):
            return Done(0, json.dumps(REACHED), "")
        self.asked.append(argv)
        if argv[0] == "mkdir":
            return Done(0, "", "")
        return Done(0, json.dumps(self.answer), "") if self.answer is not None else Done(1, "", "no vLLM here")

    @asynccontextmanager
    async def stream(self, argv: Argv, *, input: bytes = b"", sudo: bool = False) -> AsyncIterator[AsyncIterator[Line]]:
        raise AssertionError("preflight streams nothing")
        yield

    async def read(self, path: str, *, sudo: bool = False, limit: int = 0) -> bytes:
        raise AssertionError("preflight reads from the facts")

    async def write(self, path: str, data: bytes, *, mode: int = 0o644, sudo: bool = False) -> None:
        self.written[path] = data

    def http(self, port: int, *, host: str = "127.0.0.1") -> Any:
        raise AssertionError("preflight speaks no HTTP")


def context(one: Profile, there: Facts, node: Quiet) -> tuple[Context, list[Event]]:
    events: list[Event] = []

    async def confirm(question: str, word: str) -> bool:
        return False

    async def refresh() -> Facts:
        return there

    return Context(node, one, there, events.append, confirm, refresh), events


def rules(one: Profile, there: Facts) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for each in checks.machine(one, there):
        found.setdefault(each.level, []).append(each.rule)
    return found


def ready_facts(**changes: Any) -> Facts:
    return facts(**{"venvs": {"~/opt/vllm-0.16.0": venv()}, **changes})


def test_a_good_machine_has_nothing_but_good_findings() -> None:
    found = rules(profile(replaces=["old.service"]), ready_facts(units={"old.service": unit_state("old.service")}))
    assert set(found) == {"allow"}
    assert {
        "systemd",
        "gpu-count",
        "driver",
        "foreign-memory",
        "port",
        "unit",
        "replaces",
        "engine",
        "disk",
        "shm",
        "limits",
    } <= set(found["allow"])


OLD = "old.service"
MINE = "vllm-new.service"


@pytest.mark.parametrize(
    ("changes", "level", "rule", "says"),
    [
        ({"systemd": None}, "refuse", "systemd", "a running systemd"),
        ({"systemd": 237}, "refuse", "systemd", "no Type=exec"),
        ({"tools": {"systemctl": "x"}}, "refuse", "systemd", "systemd-run and journalctl"),
        ({"gpus": None, "missing": ("GPUs: nvidia-smi is not there",)}, "refuse", "gpus", "nvidia-smi is not there"),
        ({"gpus": sample(gpu(0))}, "refuse", "gpu-count", "needs 2 GPUs and 1 can be used"),
        ({"gpus": sample(gpu(0), gpu(1, lost=True))}, "refuse", "gpu-count", "1 can be used"),
        ({"gpus": sample(gpu(0), gpu(1), findings=(GpuFinding("driver-mismatch", None, "mismatch", "reboot"),))}, "refuse", "gpu-driver-mismatch", "mismatch"),
        ({"gpus": sample(gpu(0), gpu(1), findings=(GpuFinding("remap-pending", 1, "rows wait", "reset"),))}, "warn", "gpu-remap-pending", "rows wait"),
        ({"gpus": sample(driver="550.54.15")}, "refuse", "driver", "older than compute capability 12.0"),
        ({"gpus": sample(driver=None)}, "warn", "driver", "not told"),
        ({"gpus": sample(gpu(0, capability=None), gpu(1, capability=None))}, "warn", "capability", "not told"),
        ({"gpus": sample(gpu(0), gpu(1, capability=(9, 0)))}, "warn", "capability", "differ"),
        ({"gpus": sample(gpu(0, processes=(gpu_process(7, 60_000, unit="other.service"),)), gpu(1))}, "refuse", "foreign-memory", "pid 7 (python3, other.service)"),
        ({"gpus": sample(gpu(0, processes=(gpu_process(7, 60_000, unit=None, owner="alice"),)), gpu(1))}, "refuse", "foreign-memory", "alice"),
        ({"gpus": sample(gpu(0, processes=(gpu_process(7, 60_000, unit=None, owner=None),)), gpu(1))}, "warn", "foreign-memory", "an unknown account"),
        ({"gpus": sample(gpu(0, processes=(gpu_process(7, 500, unit=None, owner="alice"),)), gpu(1))}, "warn", "foreign-memory", "500"),
        ({"listeners": (listener(8000, unit="nginx.service"),)}, "refuse", "port", "pid 99 (python3) of nginx.service"),
        ({"listeners": (listener(8000, unit=None),)}, "refuse", "port", "pid 99"),
        ({"listeners": (listener(8000, unit=None, pid=None),)}, "warn", "port", "may not see what"),
        ({"units": {MINE: unit_state(MINE, load="masked")}}, "refuse", "unit", "masked"),
        ({"units": {MINE: unit_state(MINE, fragment="/lib/systemd/system/vllm-new.service")}}, "warn", "unit", "as well"),
        ({"units": {OLD: unit_state(OLD, load="not-found", active="inactive")}}, "warn", "replaces", "does not exist"),
        ({"venvs": {"~/opt/vllm-0.16.0": venv("0.15.1")}}, "refuse", "engine", "holds vLLM 0.15.1, and the profile wants 0.16.0"),
        ({"disks": {"/": Disk("/", "/", 10**6, 10**12, 10**6)}}, "refuse", "disk", "1.0 MB left"),
        ({"disks": {"/": Disk("/", "/", 10**12, 10**12, 12)}}, "refuse", "disk-inodes", "12 inodes"),
        ({"shm_free": 1000}, "warn", "shm", "/dev/shm has 1.0 kB free"),
        ({"shm_free": None}, "warn", "shm", "unknown"),
    ],
)  # fmt: skip
def test_each_trouble_has_its_finding(changes: dict[str, Any], level: str, rule: str, says: str) -> None:
    one = profile(replaces=[OLD])
    there = ready_facts(**{"units": {OLD: unit_state(OLD)}, **changes})
    found = [finding for finding in checks.machine(one, there) if (finding.level, finding.rule) == (level, rule)]
    assert found, list(checks.machine(one, there))
    assert says.replace("500", "0.5 GiB") in found[0].text
    assert level == "warn" or found[0].remedy


def test_what_is_ours_or_replaced_is_not_foreign() -> None:
    busy = gpu(0, processes=(gpu_process(7, 90_000, unit=OLD), gpu_process(8, 90_000, unit=MINE)))
    there = ready_facts(gpus=sample(busy, gpu(1)), listeners=(listener(8000, unit=OLD),), units={OLD: unit_state(OLD)})
    assert set(rules(profile(replaces=[OLD]), there)) == {"allow"}


def test_a_new_environment_needs_room() -> None:
    there = facts(disks={"~/opt/vllm-0.16.0": Disk("/x", "/", 10**9, 10**12, 10**6)})
    assert "disk-engine" in rules(profile(), there)["warn"]


def test_limits_of_the_unit_count() -> None:
    assert rules(profile(service__limits={}), ready_facts())["warn"] == ["limits", "limits"]
    assert rules(profile(service__limits={"LimitNOFILE": "1024", "LimitMEMLOCK": "infinity"}), ready_facts())[
        "warn"
    ] == ["limits"]


def test_visible_devices_and_pipeline_ranks_count() -> None:
    two = profile(environment={"CUDA_VISIBLE_DEVICES": {"value": "0"}})
    assert "gpu-count" in rules(two, ready_facts())["refuse"]
    assert checks.world_size(profile(serve__flags={"pipeline-parallel-size": 2})) == 4


def fit(**changes: Any) -> Fit:
    values: dict[str, Any] = {
        "gpu": 1 << 36, "utilization": 0.9, "budget": 1e10, "weights": 5 * 2**30, "reserve": 1e9, "kv": 1e9, "dtype": "bfloat16",
        "cost": None, "tokens": 1000, "wanted": 500, "longest": 1000, "requests": 2.0, "loads": True, "why": "fits",
        "alternatives": (Alternative("FP8 KV", 2000),), "notes": (),
    }  # fmt: skip
    return Fit(**{**values, **changes})


def test_the_memory_fit_decides() -> None:
    assert finding(()).level == "allow"
    assert fit_finding(fit()).level == "allow"
    bad = fit_finding(fit(loads=False, why="does not start with 500 tokens of context; set max-model-len to 300"))
    assert bad.level == "refuse"
    assert "set max-model-len to 300" in bad.text
    assert "FP8 KV (2,000 tokens)" in bad.remedy
    assert fit_finding(fit(loads=None, why="unknown")).level == "warn"


HELP_FLAGS = node_flags.parse_help(
    "  --tensor-parallel-size N\n  --max-model-len N\n  --trust-remote-code, --no-trust-remote-code\n"
)


def cached(flags: Any = HELP_FLAGS) -> dict[str, str]:
    path = "/var/lib/relaunch" + cache_path("/home/op/opt/vllm-0.16.0", "0.16.0").removeprefix("state:")
    return {path: json.dumps({"version": "0.16.0", "flags": flags, "variables": None})}


async def test_a_good_machine_costs_no_other_exec_and_says_so() -> None:
    node = Quiet()
    ctx, events = context(profile(serve__flags={"max-model-len": 5}), ready_facts(files=cached()), node)
    outcome = await STEP.check(ctx)
    assert isinstance(outcome, Satisfied)
    assert "checks passed" in outcome.evidence
    assert node.asked == []
    assert {event.level for event in events if isinstance(event, Found)} == {"allow"}
    assert await STEP.verify(ctx) == outcome.evidence


async def test_all_refusals_come_at_once() -> None:
    there = ready_facts(files=cached(), systemd=200, listeners=(listener(8000, unit="nginx.service"),))
    ctx, events = context(profile(serve__flags={"disable-log-requests": True}), there, Quiet())
    with pytest.raises(Refused) as caught:
        await STEP.check(ctx)
    for part in ("no Type=exec", "port 8000", "--disable-log-requests"):
        assert part in caught.value.message
    assert caught.value.code == ExitCode.REFUSED
    assert "leave it out" in caught.value.remedy
    told = [event for event in events if isinstance(event, Found) and event.level == "refuse"]
    assert {event.rule for event in told} == {"systemd", "port", "flag-removed"}
    assert len(ctx.found["preflight"]) == len([event for event in events if isinstance(event, Found)])


async def test_the_installed_vllm_is_asked_once_and_remembered() -> None:
    node = Quiet({"flags": HELP_FLAGS, "variables": ["VLLM_X"]})
    ctx, _ = context(profile(serve__flags={"max-model-len": 5}), ready_facts(), node)
    await STEP.check(ctx)
    assert [argv[0] for argv in node.asked] == ["python3", "mkdir"]
    ((path, data),) = node.written.items()
    assert path.startswith("/var/lib/relaunch/cache/flags-")
    node.asked.clear()
    ctx, _ = context(profile(serve__flags={"max-model-len": 5}), ready_facts(files={path: data.decode()}), node)
    await STEP.check(ctx)
    assert node.asked == []


async def test_a_read_only_session_remembers_nothing() -> None:
    node = Quiet({"flags": HELP_FLAGS, "variables": None})
    node.read_only = True
    ctx, _ = context(profile(), ready_facts(), node)
    await STEP.check(ctx)
    assert node.written == {}


async def test_a_vllm_that_cannot_be_asked_leaves_the_table_and_a_warning() -> None:
    ctx, events = context(profile(serve__flags={"max-model-len": 5}), ready_facts(), Quiet())
    await STEP.check(ctx)
    assert [event.rule for event in events if isinstance(event, Found) and event.level == "warn"] == ["flags-asked"]


async def test_a_vllm_that_is_not_there_yet_is_judged_by_the_table() -> None:
    ctx, _ = context(profile(serve__flags={"swap-space": 4}, vllm__version="0.18.0"), facts(), Quiet())
    with pytest.raises(Refused, match="--swap-space"):
        await STEP.check(ctx)


@pytest.mark.parametrize(
    ("answer", "level", "rule", "says"),
    [
        ({"user": False}, "refuse", "service-user", "no account vllm on the node"),
        ({"reach": [["/root/m", "/root"]]}, "refuse", "service-user", "cannot reach /root/m: /root is closed to it"),
        ({"file": "missing"}, "refuse", "environment-file", "/etc/vllm.env does not exist"),
        ({"file": "no file"}, "refuse", "environment-file", "no regular file"),
        ({"file": "open"}, "warn", "environment-file", "every account of the node can read"),
        ({"parent": ["/srv", "its file system is read-only"]}, "refuse", "model-folder", "/srv: its file system is read-only"),
    ],
)  # fmt: skip
def test_what_the_service_needs_of_the_node_has_its_finding(
    answer: dict[str, Any], level: str, rule: str, says: str
) -> None:
    found = list(access.told("vllm", "/etc/vllm.env", "/srv/m", {**REACHED, **answer}))
    assert [(one.level, one.rule) for one in found if one.level != "allow"] == [(level, rule)]
    assert len(found) == 3
    (bad,) = (one for one in found if one.level == level)
    assert says in bad.text
    assert bad.remedy


async def test_the_node_is_asked_as_the_account_itself(tmp_path: Path) -> None:
    (tmp_path / "env").write_text("A=1\n")
    (tmp_path / "env").chmod(0o600)
    place = str(tmp_path / "models/m")
    asked = {"user": getpass.getuser(), "environment_file": str(tmp_path / "env"), "folder": place, "reach": [place]}
    source = Path(access.__file__).with_name("node_access.py").read_text()
    assert await ask(LocalNode(), "access", source, asked) == {
        "user": True, "file": "good", "parent": [str(tmp_path), ""], "reach": [],
    }  # fmt: skip
    (tmp_path / "models").write_text("a file")
    other = {**asked, "user": "nobody", "environment_file": str(tmp_path)}
    answer = await ask(LocalNode(), "access", source, other)
    assert (answer["file"], answer["parent"]) == ("no file", [str(tmp_path / "models"), "it is no folder"])
    if os.geteuid() == 0:
        assert [path for path, _ in answer["reach"]] == [place]
    assert not (await ask(LocalNode(), "access", source, {**other, "user": "no-such-account"}))["user"]


def test_the_question_and_the_script_are_where_they_should_be() -> None:
    assert (Path(checks.__file__).parent / "node_flags.py").is_file()
