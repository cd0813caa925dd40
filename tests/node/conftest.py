"""Real nodes: systemd as PID 1 and OpenSSH, booted from namespaces on this machine by `node.sh`.

Fixtures for every test in this folder (they skip, with the reason, where such nodes cannot be):

    real_node          SshNode, logged in to n1 as root           real_node_ops   as ops, who has sudo without a password
    machine            n1 itself: a `Machine`, booted once for all tests; leave it as healthy as it was
    fault_machine      n2, for tests that break something; healed after each test, booted again when it does not answer
    lab                the `Lab`: `lab.boot("n3")` and `lab.halt("n3")` for a node of one's own
    connect_to         `async with connect_to(machine, user="root", **options) as node`

`machine.target(user)` is the `Target`, `machine.ssh("…")` runs a shell line with OpenSSH's own client, `machine.put(path,
data, mode)` and `machine.put_tree(folder, path)` place files on it, stand-ins in /usr/local or /opt for instance. Faults:
`machine.cut()`, `mute()`, `refuse()`, `freeze()` are context managers that heal; `machine.reset()` is a power cycle.

Each test session has a lab of its own (a slot of 16), so that several can run on one machine. The layer that makes a node
of this machine is kept in .pytest_cache/node-lab and made again when a package of the machine changes.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest

from console.node.ssh import SshNode, connect
from console.node.target import Target

SCRIPT = Path(__file__).with_name("node.sh")
CACHE = Path(__file__).parents[2] / ".pytest_cache" / "node-lab"
PACKAGES = {"ip": "iproute2", "bridge": "iproute2", "zstd": "zstd", "nft": "nftables", "unshare": "util-linux",
            "ssh-keygen": "openssh-client", "setpriv": "util-linux"}  # fmt: skip
SLOTS = 16
_CAP_SYS_ADMIN, _CAP_NET_ADMIN = 21, 12


@dataclass(frozen=True, slots=True)
class Machine:
    """One node of the lab."""

    lab: Lab
    name: str
    address: str

    def target(self, user: str = "root") -> Target:
        return Target(
            name=self.name,
            host=self.address,
            user=user,
            identity_files=(str(CACHE / "id_ed25519"),),
            known_hosts=(str(self.folder / "known_hosts"),),
        )

    @property
    def folder(self) -> Path:
        return self.lab.folder / "nodes" / self.name

    def ssh(self, line: str, *, user: str = "root", input: bytes = b"", check: bool = True) -> str:
        """Output of a shell line, run by OpenSSH's own client: what a test asks behind the back of the code under test."""
        done = self.lab.script("ssh", self.name, line, input=input, check=check, env={"NODE_USER": user})
        return done.stdout.decode(errors="replace")

    def put(self, path: str, data: bytes, mode: int = 0o755) -> None:
        """Place a file; missing folders are made."""
        self.ssh(f"mkdir -p '{os.path.dirname(path)}' && cat >'{path}' && chmod {mode:o} '{path}'", input=data)

    def put_tree(self, source: Path, path: str) -> None:
        """Place the files below `source` under `path`."""
        packed = subprocess.run(["tar", "-C", str(source), "-cf", "-", "."], check=True, capture_output=True).stdout
        self.ssh(f"mkdir -p '{path}' && tar -C '{path}' -xf -", input=packed)

    def cut(self) -> AbstractContextManager[None]:
        """The network swallows everything."""
        return self._fault("cut", "heal")

    def mute(self) -> AbstractContextManager[None]:
        """What the node sends from port 22 is lost."""
        return self._fault("mute", "unmute")

    def refuse(self) -> AbstractContextManager[None]:
        """Port 22 answers with a reset, to running sessions too."""
        return self._fault("refuse", "admit")

    def freeze(self) -> AbstractContextManager[None]:
        """Every process of the node stops."""
        return self._fault("freeze", "thaw")

    def reset(self) -> None:
        """A power cycle; returns when sshd answers again."""
        boot = self.ssh("cat /proc/sys/kernel/random/boot_id")
        self.lab.script("reset", self.name)
        while True:  # the old sshd may answer for a moment: the boot id tells
            self.lab.script("wait_sshd", self.name)
            if self.ssh("cat /proc/sys/kernel/random/boot_id", check=False) not in ("", boot):
                return

    @contextmanager
    def _fault(self, begin: str, end: str) -> Iterator[None]:
        self.lab.script(begin, self.name)
        try:
            yield
        finally:
            self.lab.script(end, self.name)


@dataclass(frozen=True, slots=True)
class Lab:
    folder: Path
    slot: int

    def script(
        self, *words: str, input: bytes = b"", check: bool = True, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        done = subprocess.run(
            [str(SCRIPT), *words],
            input=input,
            capture_output=True,
            timeout=110,
            env=os.environ
            | {"NODE_LAB": str(self.folder), "NODE_CACHE": str(CACHE), "NODE_SLOT": str(self.slot)}
            | (env or {}),
        )
        if check and done.returncode:
            said = (done.stderr + done.stdout).decode(errors="replace").strip()
            raise AssertionError(f"node.sh {' '.join(words)} ended with {done.returncode}: {said}")
        return done

    def boot(self, name: str) -> Machine:
        """A new node, running."""
        line = self.script("up", name).stdout.decode().split()
        return Machine(self, name, line[1])

    def halt(self, name: str) -> None:
        self.script("down", name)


def _why_not() -> str | None:
    """Why real nodes cannot be here; None when they can."""
    if sys.platform != "linux":
        return "namespaces need Linux"
    if os.geteuid() != 0:
        return "namespaces need root"
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line)
    effective = int(status["CapEff"], 16)
    if not all(effective >> cap & 1 for cap in (_CAP_SYS_ADMIN, _CAP_NET_ADMIN)):
        return "CAP_SYS_ADMIN and CAP_NET_ADMIN are needed"
    if not os.path.exists("/lib/systemd/systemd"):
        return "this machine has no systemd to boot"
    missing = sorted({package for program, package in PACKAGES.items() if shutil.which(program) is None})
    if missing:
        return _install(missing)
    return None


def _install(packages: list[str]) -> str | None:
    wanted = ", ".join(packages)
    if shutil.which("apt-get") is None:
        return f"{wanted} missing, and there is no apt-get"
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "-qq", "-y", "install", "--no-install-recommends", *packages]
    for words in (install, ["apt-get", "-qq", "update"], install):
        done = subprocess.run(words, capture_output=True, env=env)
        if words is install and done.returncode == 0:
            return None
    return f"{wanted} missing, and apt-get cannot install it"


def _free_slot() -> tuple[int, IO[str]]:
    """A slot nobody else uses, held by a lock that the kernel drops with this process."""
    for slot in range(SLOTS):
        lock = open(f"/run/relaunch-lab-{slot}.lock", "w")  # noqa: SIM115 -- open as long as the slot is held
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            continue
        return slot, lock
    pytest.skip("all lab slots of this machine are taken")


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    reason = _why_not()
    if reason:
        pytest.skip(f"no real nodes here: {reason}")
    slot, lock = _free_slot()
    made = Lab(Path(f"/run/relaunch-lab-{slot}"), slot)
    made.folder.mkdir(mode=0o700, exist_ok=True)
    made.script("clean")  # what a crashed run left in this slot
    CACHE.mkdir(parents=True, exist_ok=True)
    try:
        built = made.script("build", check=False)
        if built.returncode:
            pytest.skip(f"no real nodes here: {built.stderr.decode(errors='replace').strip()[-300:]}")
        yield made
    finally:
        made.script("clean", check=False)
        shutil.rmtree(made.folder, ignore_errors=True)
        lock.close()


@pytest.fixture(scope="session")
def machine(lab: Lab) -> Machine:
    return lab.boot("n1")


@pytest.fixture(scope="session")
def _fault_machine(lab: Lab) -> dict[str, Machine]:
    return {"n2": lab.boot("n2")}


@pytest.fixture
def fault_machine(lab: Lab, _fault_machine: dict[str, Machine]) -> Iterator[Machine]:
    yield _fault_machine["n2"]
    if _fault_machine["n2"].ssh("echo fine", check=False) != "fine\n":
        lab.halt("n2")
        _fault_machine["n2"] = lab.boot("n2")


ConnectTo = Callable[..., AbstractAsyncContextManager[SshNode]]


@pytest.fixture
def connect_to() -> ConnectTo:
    def to(machine: Machine, user: str = "root", **options: Any) -> AbstractAsyncContextManager[SshNode]:
        return connect(machine.target(user), **options)

    return to


@pytest.fixture
async def real_node(machine: Machine) -> AsyncIterator[SshNode]:
    async with connect(machine.target()) as node:
        yield node


@pytest.fixture
async def real_node_ops(machine: Machine) -> AsyncIterator[SshNode]:
    async with connect(machine.target("ops")) as node:
        yield node
