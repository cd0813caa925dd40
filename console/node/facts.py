"""What a machine is and holds right now: one script, one exec, every fact as JSON, every absence named.

A fact that could not be had is None and has a sentence in `Facts.missing`; nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from console.node.gpu import GpuSample


@dataclass(frozen=True, slots=True)
class Question:
    """What to look at besides the machine itself. Paths may begin with `~/` (the login's home) or `state:/` (Relaunch's
    own folder on the node)."""

    venvs: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    """Folders to list, not recursively beyond the model's own layout."""
    disks: tuple[str, ...] = ()
    """Paths whose file system's room is asked; the nearest existing parent counts."""
    units: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()
    read: tuple[str, ...] = ()
    """Small text files to read whole; a `*` in the last component reads each match."""


@dataclass(frozen=True, slots=True)
class Paths:
    """Where things are on this node: absolute folders."""

    home: str
    units: str
    """Folder for unit files, /etc/systemd/system on a real node (from systemd's own UnitPath)."""
    cgroup: str
    """Mount point that a unit's ControlGroup is relative to."""
    shm: str
    state: str
    """Relaunch's own folder: /var/lib/relaunch."""


@dataclass(frozen=True, slots=True)
class Disk:
    path: str
    mount: str
    free: int
    """Bytes available to this login."""
    total: int
    inodes_free: int | None


@dataclass(frozen=True, slots=True)
class UnitState:
    """A unit as systemd shows it. `text` is the fragment file's content, None when there is no file."""

    name: str
    load: str
    active: str
    sub: str
    result: str
    main_pid: int
    invocation: str
    cgroup: str
    fragment: str
    text: str | None
    need_reload: bool
    enabled: str
    restarts: int


@dataclass(frozen=True, slots=True)
class Venv:
    path: str
    exists: bool
    python: str | None
    """Version of its interpreter, from pyvenv.cfg."""
    vllm: str | None
    """Version by its installed metadata; None when vLLM is not installed there."""
    hub: str | None


@dataclass(frozen=True, slots=True)
class FileEntry:
    name: str
    """Path relative to the folder."""
    size: int
    """Bytes, of the link's target where it is a link."""
    allocated: int
    """Bytes on disk; less than `size` for a file with holes."""
    mtime_ns: int
    inode: int
    link: str | None
    """Target of a symbolic link, else None."""


@dataclass(frozen=True, slots=True)
class FolderState:
    path: str
    exists: bool
    files: tuple[FileEntry, ...]


@dataclass(frozen=True, slots=True)
class Listener:
    port: int
    address: str
    pid: int | None
    """None when the login may not see whose it is."""
    unit: str | None
    """The systemd unit whose cgroup holds the process."""
    command: str


@dataclass(frozen=True, slots=True)
class Facts:
    host: str
    boot_id: str
    kernel: str
    user: str
    uid: int
    paths: Paths
    python: str
    """Version of the login's python3."""
    systemd: int | None
    """Major version."""
    tools: Mapping[str, str]
    """Programs found, by name: systemctl, systemd-run, journalctl, nvidia-smi, ss, uv, git."""
    cpus: int
    memory: int
    """Bytes of RAM."""
    memory_available: int | None
    limits: Mapping[str, str]
    """Soft limits of the login: nofile, memlock; `unlimited` or a number."""
    gpus: GpuSample | None
    disks: Mapping[str, Disk]
    units: Mapping[str, UnitState]
    venvs: Mapping[str, Venv]
    folders: Mapping[str, FolderState]
    listeners: tuple[Listener, ...]
    shm_free: int | None
    files: Mapping[str, str]
    """Text of the files in `Question.read` that exist, by absolute path."""
    clock: float
    """The node's UNIX time when the facts were read."""
    missing: tuple[str, ...] = ()
    """One sentence for each fact that could not be had."""
    expanded: Mapping[str, str] = field(default_factory=dict)
    """Each path of the question as absolute path."""

    def path(self, asked: str) -> str:
        """The absolute path that `asked` means on this node."""
        if asked in self.expanded:
            return self.expanded[asked]
        if asked == "~" or asked.startswith("~/"):
            return self.paths.home + asked[1:]
        if asked.startswith("state:/"):
            return self.paths.state + asked[len("state:") :]
        return asked
