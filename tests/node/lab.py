"""The node lab: systemd nodes on this machine, booted by `node.sh`. For the fixtures in conftest, and for benchmarks.

    with open_lab() as lab:            # raises NoLab with the reason where such nodes cannot be
        machine = lab.boot("n1")
        async with connect(machine.target("ops")) as node: ...

Each lab takes a slot of 16, so that several sessions can run on one machine; the kernel gives the slot back when its process
ends, however that was, and the next lab cleans up what a crashed one left. The layer that makes a node of this machine is
kept in .pytest_cache/node-lab and made again when a package of the machine changes.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from console.node.target import Target

SCRIPT = Path(__file__).with_name("node.sh")
CACHE = Path(__file__).parents[2] / ".pytest_cache" / "node-lab"
PACKAGES = {"ip": "iproute2", "bridge": "iproute2", "zstd": "zstd", "nft": "nftables", "unshare": "util-linux",
            "ssh-keygen": "openssh-client", "setpriv": "util-linux"}  # fmt: skip
SLOTS = 16
_CAP_SYS_ADMIN, _CAP_NET_ADMIN = 21, 12


class NoLab(Exception):
    """Real nodes cannot be here; the message says why."""


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


def _take(slot: int) -> IO[str] | None:
    """The lock of a slot, or None when somebody has it. The kernel drops it with this process."""
    lock = open(f"/run/relaunch-lab-{slot}.lock", "w")  # noqa: SIM115 -- open as long as the slot is held
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        return None
    return lock


def _folder(slot: int) -> Path:
    return Path(f"/run/relaunch-lab-{slot}")


def _clear(slot: int) -> None:
    """Remove every trace of a lab whose slot is ours."""
    if _folder(slot).exists():
        Lab(_folder(slot), slot).script("clean", check=False)
        shutil.rmtree(_folder(slot), ignore_errors=True)


def _free_slot() -> tuple[int, IO[str]]:
    """A slot of one's own; all others that nobody holds are cleared of what crashed sessions left."""
    mine: tuple[int, IO[str]] | None = None
    for slot in range(SLOTS):
        if mine is not None and not _folder(slot).exists():
            continue
        lock = _take(slot)
        if lock is None:
            continue
        _clear(slot)
        if mine is None:
            mine = (slot, lock)
        else:
            lock.close()
    if mine is None:
        raise NoLab("all lab slots of this machine are taken")
    return mine


@contextmanager
def open_lab() -> Iterator[Lab]:
    """A lab without nodes yet; all its nodes are gone afterwards. Raises `NoLab`."""
    reason = _why_not()
    if reason:
        raise NoLab(reason)
    slot, lock = _free_slot()
    lab = Lab(_folder(slot), slot)
    try:
        lab.folder.mkdir(mode=0o700)
        CACHE.mkdir(parents=True, exist_ok=True)
        built = lab.script("build", check=False)
        if built.returncode:
            raise NoLab(built.stderr.decode(errors="replace").strip()[-300:])
        yield lab
    finally:
        _clear(slot)
        lock.close()
