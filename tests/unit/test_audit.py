"""The audit file: every mutation has its line, written by the node itself; what changes nothing has none."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from console.deploy.audit import Audited, action_of, entry, parse_audit, read_audit
from console.errors import CommandFailed, Refused
from console.node.agent.audit import append
from console.node.base import Denied, Done, Lost
from console.node.facts import Facts, Paths
from console.node.local import LocalNode
from console.node.script import ask, python_call

SECRET = "hf_SentinelNobodyMayEverSee42"


@pytest.fixture
def facts(tmp_path: Path) -> Facts:
    values: dict[str, Any] = {field.name: None for field in dataclasses.fields(Facts)}
    paths = Paths(home="/root", units="/u", cgroup="/c", shm="/s", state=str(tmp_path / "state"))
    return Facts(**(values | {"paths": paths, "files": {}, "expanded": {}}))


@pytest.fixture
def node(facts: Facts) -> Audited:
    made = Audited(LocalNode(), facts, operator="ada@laptop", run="0007")
    made.step = "launch"
    return made


def lines(facts: Facts) -> list[dict[str, Any]]:
    path = Path(facts.paths.state) / "audit.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


async def test_a_mutation_has_one_line_with_who_what_and_its_end(node: Audited, facts: Facts, tmp_path: Path) -> None:
    made = tmp_path / "made"
    assert await node.run(("touch", str(made)), timeout=30) == Done(0, "", "")
    assert made.exists()
    (line,) = lines(facts)
    assert line["time"].endswith("Z")
    assert {key: line[key] for key in ("operator", "run", "step", "action", "result")} == {
        "operator": "ada@laptop", "run": "0007", "step": "launch", "action": f"touch {made}", "result": "done",
    }  # fmt: skip


async def test_output_input_and_exit_status_are_the_commands_own(node: Audited, facts: Facts) -> None:
    answer = await node.run(("sh", "-c", "cat; echo oops >&2; exit 3"), input=b"through", timeout=30)
    assert answer == Done(3, "through", "oops\n")
    missing = await node.run(("no-such-program",), timeout=30)
    assert isinstance(missing, Done)
    assert (missing.code, "no-such-program" in missing.err) == (127, True)
    killed = await node.run(("sh", "-c", "kill -9 $$"), timeout=30)
    assert isinstance(killed, Done)
    assert killed.code == 128 + signal.SIGKILL
    assert [line["result"] for line in lines(facts)] == [
        "code 3", "not started: No such file or directory", "signal 9",
    ]  # fmt: skip


async def test_reading_leaves_no_line(node: Audited, facts: Facts, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"bytes")
    await node.run(("true",), timeout=30, mutates=False)
    assert await node.read(str(tmp_path / "file")) == b"bytes"
    async with node.stream(("echo", "line")) as out:
        assert [line.text async for line in out] == ["line"]
    assert lines(facts) == []


async def test_a_written_file_and_a_script_are_named(node: Audited, facts: Facts, tmp_path: Path) -> None:
    place = tmp_path / "unit.service"
    path = str(place)
    await node.write(path, b"text", mode=0o640)
    assert place.read_bytes() == b"text"
    assert place.stat().st_mode & 0o777 == 0o640
    await ask(node, "overlay", "print('{}')", {"op": "build", "overlay": "/o", "token": SECRET}, mutates=True)
    with pytest.raises(CommandFailed):
        await node.write(str(tmp_path / "none" / "x"), b"")
    assert [line["action"] for line in lines(facts)] == [
        f"write file {path}", "overlay build /o", f"write file {tmp_path / 'none' / 'x'}",
    ]  # fmt: skip
    assert SECRET not in json.dumps(lines(facts))


def test_an_action_is_redacted_cleaned_and_short() -> None:
    argv, stdin = python_call("job x", "source", {"op": "start", "folder": "/f", "secrets": {"token": SECRET}})
    assert action_of(argv, stdin) == "job x start /f"
    told = action_of(("curl", f"--api-key={SECRET}", "\x1b[2Jx\ny", "z" * 900), None)
    assert SECRET not in told
    assert "\x1b" not in told
    assert "\n" not in told
    assert len(told) == 400
    assert action_of(argv, b"no json") == "a Python script"


async def test_a_read_only_node_writes_nothing_down_since_nothing_happens(facts: Facts, tmp_path: Path) -> None:
    node = Audited(LocalNode(read_only=True), facts, operator="ada", run="1")
    assert isinstance(await node.run(("touch", str(tmp_path / "x")), timeout=30), Denied)
    with pytest.raises(Refused):
        await node.write(str(tmp_path / "x"), b"")
    assert not (tmp_path / "x").exists()
    assert not (tmp_path / "state").exists()


async def test_the_line_is_there_without_a_console(facts: Facts, tmp_path: Path) -> None:
    """What is sent is one command that looks after itself: nobody need wait for it."""
    sent: list[tuple[str, ...]] = []

    class Recorder(LocalNode):
        async def run(self, argv: tuple[str, ...], **options: Any) -> Any:
            sent.append(argv)
            return Lost(sent=True)

    go = tmp_path / "go"
    os.mkfifo(go)
    await Audited(Recorder(), facts, operator="ada", run="1").run(("cat", str(go)), timeout=1)
    process = await asyncio.create_subprocess_exec(*sent[0], stdout=asyncio.subprocess.DEVNULL)
    await asyncio.to_thread(go.write_text, "now")  # done when somebody reads
    assert await process.wait() == 0
    assert [line["result"] for line in lines(facts)] == ["done"]


async def test_a_long_command_is_written_down_when_it_begins_too(node: Audited, facts: Facts) -> None:
    await node.run(("sleep", "1.4"), timeout=30)
    assert [line["result"] for line in lines(facts)] == ["begun", "done"]


async def test_a_torn_line_spoils_no_other(node: Audited, facts: Facts) -> None:
    path = Path(facts.paths.state) / "audit.jsonl"
    path.parent.mkdir()
    path.write_text('{"time": "2026", "act')
    await node.run(("true",), timeout=30)
    assert path.read_text().count("\n") == 2
    found = await read_audit(LocalNode(), facts)
    assert [line["action"] for line in found] == ["true"]


def test_an_audit_file_that_cannot_be_written_stops_no_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert append(str(tmp_path / "file" / "audit.jsonl"), {"action": "x"}) is False
    target = tmp_path / "elsewhere"
    (tmp_path / "link").symlink_to(target)
    assert append(str(tmp_path / "link"), {"action": "x"}) is False
    assert not target.exists(), "a link is not followed"


def test_parsing_leaves_out_what_is_no_line() -> None:
    assert parse_audit('{"a": 1}\nnoise\n[1]\n') == ({"a": 1},)
    assert entry("a\x1b[31mb", "1", "s", "x")["operator"] == "ab"
