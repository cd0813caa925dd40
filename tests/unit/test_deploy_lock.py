"""The lock on a node, through the real script run on this machine."""

from __future__ import annotations

import ast
import asyncio
import dataclasses
import fcntl
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from console.deploy import lock
from console.deploy.lock import Owner, abandoned, acquire, break_lock, held, holder, parse_owner, release_lock
from console.errors import Locked
from console.events import Event, Noted
from console.node.facts import Facts, Paths
from console.node.local import LocalNode

BOOT = Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@pytest.fixture
def facts(tmp_path: Path) -> Facts:
    values: dict[str, Any] = {field.name: None for field in dataclasses.fields(Facts)}
    paths = Paths(home="/root", units="/u", cgroup="/c", shm="/s", state=str(tmp_path / "state"))
    return Facts(**(values | {"paths": paths, "files": {}, "expanded": {}, "boot_id": BOOT}))


def someone(run: str = "7", **changes: Any) -> Owner:
    return replace(Owner.here(run=run, verb="redeploy", who="ada", where="laptop"), **changes)


def lock_file(facts: Facts) -> Path:
    return Path(facts.paths.state) / "lock.json"


async def test_one_holds_it_and_the_other_learns_the_name(facts: Facts) -> None:
    node = LocalNode()
    first, second = someone("1"), someone("2", who="bob")
    taken = await acquire(node, facts, first)
    assert taken.owner.who == "ada"
    with pytest.raises(Locked) as caught:
        await acquire(node, facts, second)
    assert "ada@laptop (redeploy, run 1" in caught.value.message
    assert caught.value.remedy
    await release_lock(node, facts, second)
    assert lock_file(facts).exists(), "somebody else's lock is left alone"
    await release_lock(node, facts, taken)
    assert not lock_file(facts).exists()
    await acquire(node, facts, second)


async def test_whoever_takes_it_sweeps_what_dead_writers_left_and_nothing_else(facts: Facts, tmp_path: Path) -> None:
    facts = replace(facts, paths=replace(facts.paths, units=str(tmp_path / "units")))
    names = {name: tmp_path / place / f".relaunch-{name * 16}" for name, place in
             {"a": "state/releases/3", "b": "units", "c": "state", "d": "state/overlays/m"}.items()}  # fmt: skip
    for path in names.values():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("half")
        os.utime(path, (1.0, 1.0))
    young, other = tmp_path / "state/.relaunch-eeeeeeeeeeeeeeee", tmp_path / "state/.relaunch-removing"
    young.write_text("of a moment ago")
    other.write_text("x")
    os.utime(other, (1.0, 1.0))
    told: list[Event] = []
    with names["c"].open() as writing:
        fcntl.flock(writing, fcntl.LOCK_EX)  # its writer lives
        async with held(LocalNode(), facts, someone(), emit=told.append) as taken:
            assert sorted(taken.swept) == sorted(str(names[name]) for name in "ab")
    assert [path.exists() for path in (*names.values(), young, other)] == [False, False, True, True, True, True]
    assert "writes that were cut off had left" in str(told)


async def test_only_one_of_many_gets_it(facts: Facts) -> None:
    node = LocalNode()
    answers = await asyncio.gather(*(acquire(node, facts, someone(str(n))) for n in range(6)), return_exceptions=True)
    won = [answer for answer in answers if not isinstance(answer, BaseException)]
    assert len(won) == 1
    assert all(isinstance(answer, Locked) for answer in answers if isinstance(answer, BaseException))
    assert json.loads(lock_file(facts).read_text())["token"] == won[0].owner.token
    assert sorted(path.name for path in lock_file(facts).parent.iterdir()) == [
        "audit.jsonl",
        "lock.json",
        "lock.json.guard",
    ]


async def test_the_same_owner_asks_twice_and_a_run_of_the_same_number_is_another(facts: Facts) -> None:
    node = LocalNode()
    mine = someone("0001")
    await acquire(node, facts, mine)
    assert (await acquire(node, facts, mine)).broke is None
    with pytest.raises(Locked):
        await acquire(node, facts, someone("0001"))


async def test_a_lock_of_another_boot_is_stale(facts: Facts) -> None:
    node = LocalNode()
    await acquire(node, facts, someone("1"))
    data = json.loads(lock_file(facts).read_text())
    lock_file(facts).write_text(json.dumps({**data, "boot": "another"}))
    taken = await acquire(node, facts, someone("2"))
    assert taken.broke is not None
    assert taken.broke.run == "1"


async def test_a_lock_whose_console_is_gone_is_taken_over(facts: Facts) -> None:
    node = LocalNode()
    gone = await asyncio.create_subprocess_exec(sys.executable, "-c", "")
    await gone.wait()
    await acquire(node, facts, someone("1", pid=gone.pid, started=1))
    taken = await acquire(node, facts, someone("2"))
    assert taken.broke is not None


async def test_a_half_written_lock_does_not_lock_for_ever(facts: Facts) -> None:
    lock_file(facts).parent.mkdir()
    lock_file(facts).write_text('{"who": "ad')
    taken = await acquire(LocalNode(), facts, someone("2"))
    assert taken.broke is not None


def test_abandoned_is_only_said_of_what_can_be_seen() -> None:
    me = someone()
    assert not abandoned(me)
    assert abandoned(replace(me, started=(me.started or 0) + 1))
    assert not abandoned(replace(me, started=1, machine="elsewhere"))
    assert not abandoned(replace(me, started=None))


async def test_waiting_ends_when_the_other_gives_it_back(facts: Facts) -> None:
    node = LocalNode()
    said: list[Event] = []
    told = asyncio.Event()

    def tell(event: Event) -> None:
        said.append(event)
        told.set()

    taken = await acquire(node, facts, someone("1"))

    async def wait() -> str:
        async with held(node, facts, someone("2"), wait=60, emit=tell) as mine:
            return mine.owner.run

    waiting = asyncio.ensure_future(wait())
    await told.wait()
    await release_lock(node, facts, taken)
    assert await waiting == "2"
    assert isinstance(said[0], Noted)
    assert not lock_file(facts).exists()


async def test_break_removes_exactly_what_was_looked_at(facts: Facts) -> None:
    node = LocalNode()
    taken = await acquire(node, facts, someone("1"))
    assert not await break_lock(node, facts, replace(taken.owner, token="other"))
    assert await break_lock(node, facts, taken.owner)
    assert not lock_file(facts).exists()


@pytest.mark.parametrize("text", ["", "[]", "{", "null", "3"])
def test_what_is_no_owner_is_none(text: str) -> None:
    assert parse_owner(text) is None


def test_a_strangers_lock_is_shown_as_far_as_it_goes(facts: Facts) -> None:
    shown = parse_owner('{"who": "\\u001b[31meve", "pid": "x", "extra": 1}')
    assert shown is not None
    assert str(shown).startswith("eve@unknown (")
    path = facts.path("state:/lock.json")
    assert holder(replace(facts, files={path: json.dumps({"who": "a", "boot": BOOT})})) is not None
    assert holder(replace(facts, files={path: json.dumps({"who": "a", "boot": "old"})})) is None


def test_the_script_runs_on_old_pythons() -> None:
    ast.parse(Path(lock.__file__).with_name("node_lock.py").read_text(), feature_version=(3, 6))
    assert os.path.exists(lock._SOURCE)
