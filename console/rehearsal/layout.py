"""Where things stand in a practice node: the state folder on the operator's machine, and ROOT, the node's sandbox.

Pure but for `short_folder`. The state folder holds `root/` (ROOT), the keys, `server.json`, `server.log` and two locks.
UNIX socket names are limited to some 104 bytes, so sockets live in a short private folder under /tmp and ROOT holds
links to them: whoever binds or connects takes `os.path.realpath` first.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT_VARIABLE = "RELAUNCH_PRACTICE_ROOT"


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths of one practice node, from its state folder."""

    state: Path

    @property
    def root(self) -> Path:
        """The node's file system: HOME of its login, and the prefix of everything that a real node has at `/`."""
        return self.state / "root"

    @property
    def host_key(self) -> Path:
        return self.state / "host_ed25519"

    @property
    def client_key(self) -> Path:
        return self.state / "client_ed25519"

    @property
    def server_lock(self) -> Path:
        """Held with flock by the server for as long as it lives: the one answer to "is it running"."""
        return self.state / "server.lock"

    @property
    def start_lock(self) -> Path:
        """Held while a console starts, stops or resets the server, so that two consoles start only one."""
        return self.state / "start.lock"

    @property
    def server_file(self) -> Path:
        return self.state / "server.json"

    @property
    def server_log(self) -> Path:
        return self.state / "server.log"

    @property
    def bin(self) -> Path:
        return self.root / "bin"

    @property
    def units(self) -> Path:
        return self.root / "etc/systemd/system"

    @property
    def transient(self) -> Path:
        return self.root / "run/systemd/transient"

    @property
    def control(self) -> Path:
        """The UNIX socket of the practice init; a link into the short folder."""
        return self.root / "run/systemd/private"

    @property
    def cgroup(self) -> Path:
        return self.root / "sys/fs/cgroup"

    @property
    def journal(self) -> Path:
        return self.root / "var/log/journal/practice.jsonl"

    @property
    def net(self) -> Path:
        """`PORT.sock` and `PORT.json` of every stand-in server; a link into the short folder."""
        return self.root / "net"

    @property
    def faults(self) -> Path:
        return self.root / "faults.json"

    def environment(self) -> dict[str, str]:
        """What every command and unit of the practice node finds in its environment."""
        system = os.environ.get("PATH") or os.defpath
        return {
            "HOME": str(self.root),
            ROOT_VARIABLE: str(self.root),
            "PATH": f"{self.bin}{os.pathsep}{system}",
            "LANG": os.environ.get("LANG", "C.UTF-8"),
            "SHELL": "/bin/sh",
        }


def short_folder() -> Path:
    """A new private folder whose name is short enough for UNIX sockets; its maker removes it."""
    return Path(tempfile.mkdtemp(prefix="relaunch-", dir="/tmp"))  # $TMPDIR may be long
