"""Becoming root: what is run, what stands on stdin, what is asked and how often."""

from __future__ import annotations

import asyncio

import pytest

from console.node.base import Argv, Denied, Done, Lost, Result
from console.node.sudo import ROOT, Elevation, How, Sudo
from console.node.target import SudoMode
from console.text import Secret

PASSWORD = "correct horse"


class Machine:
    """What sudo does on a node, as far as the exit status and `cat` show it."""

    def __init__(self, *, free: bool = False, there: bool = True, reads: bool = True) -> None:
        self.free, self.there, self.reads = free, there, reads
        self.seen: list[tuple[Argv, bytes]] = []

    async def run(self, argv: Argv, input: bytes, timeout: float) -> Result:
        self.seen.append((argv, input))
        if not self.there:
            return Done(127, "", "sudo: not found")
        if argv[1] == "-n":
            return Done(0 if self.free else 1, "", "")
        if not self.reads:
            return Done(0, input.decode(), "")
        return Done(0 if input == PASSWORD.encode() + b"\n" else 1, "", "")


class Person:
    def __init__(self, *answers: str | None) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def accept_host(self, question: object) -> bool:
        return False

    async def password(self, question: str) -> Secret | None:
        self.asked += 1
        answer = self.answers.pop(0)
        return None if answer is None else Secret(answer)


def sudo(machine: Machine, person: Person | None = None, *, is_root: bool = False, mode: SudoMode = "auto") -> Sudo:
    return Sudo(machine.run, node="gpu1", login="ops", is_root=is_root, mode=mode, prompts=person)


def test_what_is_run() -> None:
    argv = ("systemctl", "stop", "a b")
    assert ROOT.argv(argv) == argv
    assert Elevation(How.FREE).argv(argv) == ("sudo", "-n", "--", *argv)
    secret = Elevation(How.PASSWORD, Secret(PASSWORD))
    assert secret.argv(argv) == ("sudo", "-k", "-S", "-p", "", "--", "env", "--", *argv)
    assert secret.stdin(b"rest") == b"correct horse\nrest"
    assert PASSWORD not in repr(secret)


async def test_root_needs_no_sudo() -> None:
    machine = Machine()
    assert await sudo(machine, is_root=True).elevation() == ROOT
    assert machine.seen == []


async def test_it_is_found_out_once() -> None:
    machine = Machine(free=True)
    how = sudo(machine)
    assert set(await asyncio.gather(*(how.elevation() for _ in range(5)))) == {Elevation(How.FREE)}
    assert machine.seen == [(("sudo", "-n", "--", "true"), b"")]


async def test_a_password_is_asked_once_and_kept() -> None:
    person, machine = Person(PASSWORD), Machine()
    how = sudo(machine, person)
    for _ in range(3):
        found = await how.elevation()
        assert isinstance(found, Elevation)
        assert found.how is How.PASSWORD
    assert person.asked == 1
    assert not [argv for argv, _ in machine.seen if PASSWORD in " ".join(argv)]


async def test_a_second_try_and_no_third() -> None:
    person = Person("wrong", PASSWORD)
    assert isinstance(await sudo(Machine(), person).elevation(), Elevation)
    person = Person("wrong", "wrong", PASSWORD)
    how = sudo(Machine(), person)
    for _ in range(2):
        found = await how.elevation()
        assert isinstance(found, Denied)
    assert person.asked == 2


@pytest.mark.parametrize(
    ("machine", "person", "mode", "words"),
    [
        (Machine(), None, "auto", "nobody to ask"),
        (Machine(), Person(None), "auto", "no password"),
        (Machine(there=False), None, "auto", "no sudo"),
        (Machine(free=True), None, "never", "sudo: never"),
        (Machine(reads=False), Person(PASSWORD), "auto", "neither with nor without"),
        (Machine(), Person("two\nlines", "two\nlines"), "auto", "neither of two"),
    ],
)
async def test_why_not(machine: Machine, person: Person | None, mode: SudoMode, words: str) -> None:
    found = await sudo(machine, person, mode=mode).elevation()
    assert isinstance(found, Denied)
    assert words in found.reason
    assert PASSWORD not in found.reason


async def test_a_lost_link_is_no_answer_and_is_not_kept() -> None:
    answers: list[Result] = [Lost(sent=True, reason="cut"), Done(0, "", "")]

    async def run(argv: Argv, input: bytes, timeout: float) -> Result:
        return answers.pop(0)

    how = Sudo(run, node="gpu1", login="ops", is_root=False, mode="auto", prompts=None)
    assert await how.elevation() == Lost(sent=False, reason="cut")
    assert await how.elevation() == Elevation(How.FREE)
