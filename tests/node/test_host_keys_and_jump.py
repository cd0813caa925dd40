"""Host keys and jump hosts against OpenSSH: what is accepted, what never is, and that the remedies work as printed."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import stat
import subprocess
from collections.abc import Iterator

import pytest

from console.errors import AuthenticationFailed, HostKeyRejected
from console.node.base import Done
from console.node.hostkeys import own_file
from console.node.prompts import UnknownHost
from console.node.ssh import connect
from console.node.target import parse_target
from console.text import Secret


class Person:
    """Answers every host key question the same way, and remembers what was asked."""

    def __init__(self, *, accepts: bool) -> None:
        self._accepts = accepts
        self.asked: list[UnknownHost] = []

    async def accept_host(self, question: UnknownHost) -> bool:
        self.asked.append(question)
        return self._accepts

    async def password(self, question: str) -> Secret | None:
        return None


def shell(command: str) -> None:
    """What an operator does with a remedy: paste it."""
    subprocess.run(["sh", "-ec", command], check=True, capture_output=True)


def fingerprint(machine) -> str:
    return machine.ssh("ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub").split()[1]


def stranger(machine, *, known: str | None = None, **changes):
    """The machine's target with nothing known of its key, or the wrong key."""
    files: tuple[str, ...] = () if known is None else (known,)
    return dataclasses.replace(machine.target(), known_hosts=files, **changes)


async def test_an_unknown_key_is_refused_when_nobody_can_look(machine) -> None:
    with pytest.raises(HostKeyRejected, match="not known") as caught:
        async with connect(stranger(machine)):
            pass
    assert fingerprint(machine) in caught.value.message
    command = caught.value.remedy.split("accept it once: ")[1]
    shell(command)
    async with connect(stranger(machine)) as node:
        assert await node.run(("echo", "in"), timeout=30) == Done(0, "in\n", "")


async def test_a_person_who_declines_is_obeyed(machine) -> None:
    person = Person(accepts=False)
    with pytest.raises(HostKeyRejected):
        async with connect(stranger(machine), prompts=person):
            pass
    assert len(person.asked) == 1
    assert not own_file().exists()


async def test_a_person_accepts_a_fingerprint_once(machine) -> None:
    person = Person(accepts=True)
    async with connect(stranger(machine), prompts=person) as node:
        assert await node.run(("echo", "in"), timeout=30) == Done(0, "in\n", "")
    assert [question.fingerprint for question in person.asked] == [fingerprint(machine)]
    assert stat.S_IMODE(own_file().stat().st_mode) == 0o600
    async with connect(stranger(machine)) as node:
        assert await node.run(("echo", "again"), timeout=30) == Done(0, "again\n", "")


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa"])
async def test_a_changed_key_is_never_accepted(machine, tmp_path, kind: str) -> None:
    """With another key of the same type known, and with one of a type the server does not even have."""
    shell(f"ssh-keygen -q -t {kind} -N '' -f {tmp_path}/other")
    words = (tmp_path / "other.pub").read_text().split()
    known = tmp_path / "known_hosts"
    known.write_text(f"{machine.address} {words[0]} {words[1]}\n")
    person = Person(accepts=True)
    with pytest.raises(HostKeyRejected, match="CHANGED") as caught:
        async with connect(stranger(machine, known=str(known)), prompts=person):
            pass
    assert person.asked == []
    assert fingerprint(machine) in caught.value.message
    command = caught.value.remedy.split("on purpose: ")[1]
    assert command == f"ssh-keygen -R {machine.address} -f {known}"
    shell(command)
    async with connect(stranger(machine, known=str(known)), prompts=person):
        assert len(person.asked) == 1


async def test_a_revoked_key_is_never_accepted(machine, tmp_path) -> None:
    line = (machine.folder / "known_hosts").read_text()
    known = tmp_path / "known_hosts"
    known.write_text(f"{line}@revoked * {' '.join(line.split()[1:3])}\n")
    person = Person(accepts=True)
    with pytest.raises(HostKeyRejected, match="revoked"):
        async with connect(stranger(machine, known=str(known)), prompts=person):
            pass
    assert person.asked == []


async def test_checking_cannot_be_turned_off_in_the_openssh_config(machine, tmp_path) -> None:
    config = tmp_path / "config"
    config.write_text("UserKnownHostsFile none\nGlobalKnownHostsFile none\nStrictHostKeyChecking no\n")
    target = dataclasses.replace(machine.target(), known_hosts=None, config=(str(config),))
    with pytest.raises(HostKeyRejected, match="not known"):
        async with connect(target):
            pass


async def test_a_pin_accepts_its_key_and_no_other(machine, fault_machine) -> None:
    key = " ".join((machine.folder / "known_hosts").read_text().split()[1:3])
    for pin in (key, fingerprint(machine)):
        async with connect(stranger(machine, host_key=pin)) as node:
            assert await node.run(("echo", "in"), timeout=30) == Done(0, "in\n", "")
        with pytest.raises(HostKeyRejected, match="not the pinned one"):
            async with connect(stranger(fault_machine, host_key=pin), prompts=Person(accepts=True)):
                pass


async def test_a_login_that_is_refused_says_what_the_server_takes(machine) -> None:
    target = dataclasses.replace(machine.target(), user="nobody")
    with pytest.raises(AuthenticationFailed, match=re.escape("nobody@" + machine.address)) as caught:
        async with connect(target):
            pass
    assert "publickey" in caught.value.message


async def test_through_a_jump_host_by_the_nodes_file(machine, fault_machine, tmp_path) -> None:
    """The jump host's own key is checked as strictly as the last one's, and its failures name it."""
    last, jump = machine.target(), fault_machine.target("ops")
    nodes = tmp_path / "nodes.yaml"
    nodes.write_text(
        "nodes:\n"
        f"  behind: {{host: {last.host}, user: root, jump: bastion, identity: {last.identity_files[0]},"
        f" known_hosts: {last.known_hosts[0]}}}\n"
        f"  bastion: {{host: {jump.host}, user: ops, identity: {jump.identity_files[0]},"
        f" known_hosts: {jump.known_hosts[0]}}}\n"
    )
    async with connect(parse_target("behind", nodes)) as node:
        answer = await node.run(("sh", "-c", 'echo "${SSH_CONNECTION%% *}"'), timeout=30)
    assert answer == Done(0, f"{jump.host}\n", "")
    nodes.write_text(nodes.read_text().replace(jump.known_hosts[0], "/dev/null"))
    with pytest.raises(HostKeyRejected, match="bastion"):
        async with connect(parse_target("behind", nodes)):
            pass


async def test_through_a_jump_host_by_the_openssh_config(machine, fault_machine, own_home) -> None:
    """Alias, Include, ProxyJump, IdentityFile (one of them not there) and UserKnownHostsFile of ~/.ssh/config."""
    last, jump = machine.target(), fault_machine.target()
    folder = own_home / ".ssh"
    folder.mkdir()
    (folder / "config").write_text("Include lab.conf\n")
    (folder / "lab.conf").write_text(
        f"Host behind\n  HostName {last.host}\n  User root\n  ProxyJump bastion\n"
        f"  UserKnownHostsFile {last.known_hosts[0]}\n"
        f"Host bastion\n  HostName {jump.host}\n  User ops\n  UserKnownHostsFile {jump.known_hosts[0]}\n"
        f"Host *\n  IdentityFile ~/.ssh/not-there\n  IdentityFile {last.identity_files[0]}\n"
        "  RequestTTY force\n  RemoteCommand echo never\n  ForwardAgent yes\n"
    )
    async with connect(parse_target("behind")) as node:
        answer = await node.run(("sh", "-c", 'echo "${SSH_CONNECTION%% *}"; test -t 0 || echo no terminal'), timeout=30)
    assert answer == Done(0, f"{jump.host}\nno terminal\n", "")


@pytest.fixture
def agent(machine, tmp_path, monkeypatch) -> Iterator[None]:
    """An ssh-agent that holds the lab's key, which no file of the account has."""
    socket = f"/tmp/relaunch-agent-{os.getpid()}"
    with subprocess.Popen(["ssh-agent", "-D", "-a", socket], stdout=subprocess.DEVNULL) as running:
        monkeypatch.setenv("SSH_AUTH_SOCK", socket)
        key = shlex.quote(machine.target().identity_files[0])
        shell(f"for try in $(seq 100); do test -S {socket} && break; sleep 0.05; done; ssh-add -q {key}")
        yield
        running.terminate()


async def test_a_key_of_the_agent_is_used_and_the_agent_goes_no_further(machine, agent, tmp_path) -> None:
    config = tmp_path / "config"
    config.write_text("ForwardAgent yes\n")
    target = dataclasses.replace(machine.target(), identity_files=(), config=(str(config),))
    async with connect(target) as node:
        answer = await node.run(("sh", "-c", 'echo "${SSH_AUTH_SOCK:-no agent here}"'), timeout=30)
    assert answer == Done(0, "no agent here\n", "")
