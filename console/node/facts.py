"""What a machine is and holds right now: one script, one exec, every fact as JSON, every absence named.

A fact that could not be had is None and has a sentence in `Facts.missing`; nothing is guessed. The script runs as root where
the login is root or has sudo, since ports' owners, the kernel log and other logins' files are hidden from anyone else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from console.errors import CommandFailed, RelaunchError
from console.node import agent
from console.node.base import Node
from console.node.gpu import AGENT_MODULES, GpuSample, sample_of
from console.node.script import ask


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
    exit_kind: str = ""
    """How the main process ended last: exited, killed or dumped; empty while none has ended."""
    exit_status: int | None = None
    """Its exit code or signal number."""
    stale: bool = False
    """The unit file was written after the main process started, so that what runs need not be what `text` says. Known to
    `read_facts` only."""


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
    """Disks, venvs and folders are found by the path as asked and by the absolute path."""
    units: Mapping[str, UnitState]
    venvs: Mapping[str, Venv]
    folders: Mapping[str, FolderState]
    listeners: tuple[Listener, ...]
    """Who listens on the ports asked for, and on any port in the units asked for."""
    shm_free: int | None
    files: Mapping[str, str]
    """Text of the files in `Question.read` that exist, by absolute path. Bytes that are no UTF-8 are kept as surrogates
    (`surrogateescape`), so that encoding gives the very bytes."""
    clock: float
    """The node's UNIX time when the facts were read."""
    missing: tuple[str, ...] = ()
    """One sentence for each fact that could not be had."""
    expanded: Mapping[str, str] = field(default_factory=dict)
    """Each path of the question as absolute path."""
    root: bool = False
    """The facts were read as root, by login or by sudo: permissions hid nothing."""
    kernel_log: tuple[str, ...] = ()
    """Lines of this boot's kernel log that tell of GPU faults, PCIe errors and the OOM killer, oldest first."""
    kernel_log_read: bool = False
    """False where the kernel log could not be read, so that an empty `kernel_log` proves nothing."""

    def path(self, asked: str) -> str:
        """The absolute path that `asked` means on this node."""
        if asked in self.expanded:
            return self.expanded[asked]
        if asked == "~" or asked.startswith("~/"):
            return self.paths.home + asked[1:]
        if asked.startswith("state:/"):
            return self.paths.state + asked[len("state:") :]
        return asked


_SCRIPT = Path(__file__).with_name("node_facts.py")
_T = TypeVar("_T")


def facts_source() -> str:
    """The script that is sent: node_facts.py with the agent's modules that it uses."""
    return agent.program(_SCRIPT.read_text(), (*AGENT_MODULES, "telemetry_once"))


async def read_facts(node: Node, question: Question) -> Facts:
    """All facts by one exec: as root where that is possible, else as the login, which is one more exec and is named in
    `missing`. Raises `Unreachable`, and `CommandFailed` when the node has no usable python3."""
    source, asked = facts_source(), asdict(question)
    # `true` first for a login that is not root would be an exec for everyone; a refused sudo shows soon enough
    try:
        answer = await ask(node, "facts", source, asked, sudo=True, timeout=120)
    except CommandFailed as error:
        if not _sudo_refused(error):
            raise
        answer = await ask(node, "facts", source, asked, timeout=120)
    return parse_facts(answer)


def _sudo_refused(error: CommandFailed) -> bool:
    """True when the command did not run because root was not to be had."""
    return error.exit_status == 126 or "sudo" in error.err


class _Answer:
    """Typed access to the script's answer; anything of the wrong type is an error that names the field."""

    def __init__(self, data: Any, where: str = "facts") -> None:
        if not isinstance(data, Mapping):
            raise RelaunchError(
                f"{where}: the facts script answered {type(data).__name__} where an object was expected"
            )
        self.data = data
        self.where = where

    def get(self, key: str, kind: type[_T]) -> _T:
        value = self.data.get(key)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise RelaunchError(f"{self.where}.{key}: the facts script answered {value!r:.80} for {kind.__name__}")
        return value

    def maybe(self, key: str, kind: type[_T]) -> _T | None:
        return None if self.data.get(key) is None else self.get(key, kind)

    def real(self, key: str) -> float:
        value = self.data.get(key)
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise RelaunchError(f"{self.where}.{key}: the facts script answered {value!r:.80} for a number")
        return float(value)

    def texts(self, key: str) -> dict[str, str]:
        """An object of texts; entries that are null are left out."""
        items = self.get(key, dict)
        return {str(name): str(value) for name, value in items.items() if value is not None}

    def lines(self, key: str) -> tuple[str, ...]:
        return tuple(str(item) for item in self.get(key, list))

    def each(self, key: str, make: Callable[[str, _Answer], _T]) -> dict[str, _T]:
        """An object of objects, by their keys and by their own absolute paths; entries that are null could not be read and
        are left out."""
        found: dict[str, _T] = {}
        for name, value in self.get(key, dict).items():
            if value is not None:
                item = make(str(name), _Answer(value, f"{self.where}.{key}[{name}]"))
                found[str(name)] = item
                found[str(getattr(item, "path", name))] = item
        return found


def _disk(_: str, data: _Answer) -> Disk:
    return Disk(
        path=data.get("path", str),
        mount=data.get("mount", str),
        free=data.get("free", int),
        total=data.get("total", int),
        inodes_free=data.maybe("inodes_free", int),
    )


def _unit(name: str, data: _Answer) -> UnitState:
    from console.node.systemd import parse_state

    block = {str(key): str(value) for key, value in data.data.items()}
    return replace(parse_state(name, block, block.get("text")), stale=block.get("stale") == "yes")


def _venv(_: str, data: _Answer) -> Venv:
    return Venv(
        path=data.get("path", str),
        exists=data.get("exists", bool),
        python=data.maybe("python", str),
        vllm=data.maybe("vllm", str),
        hub=data.maybe("hub", str),
    )


def _file(row: Sequence[Any]) -> FileEntry:
    name, size, allocated, mtime, inode, link = row
    return FileEntry(
        name=str(name),
        size=int(size),
        allocated=int(allocated),
        mtime_ns=int(mtime),
        inode=int(inode),
        link=None if link is None else str(link),
    )


def _folder(_: str, data: _Answer) -> FolderState:
    return FolderState(
        path=data.get("path", str),
        exists=data.get("exists", bool),
        files=tuple(_file(row) for row in data.get("files", list)),
    )


def _listener(item: Any) -> Listener:
    data = _Answer(item, "facts.listeners")
    return Listener(
        port=data.get("port", int),
        address=data.get("address", str),
        pid=data.maybe("pid", int),
        unit=data.maybe("unit", str),
        command=data.get("command", str),
    )


def parse_facts(answer: Any) -> Facts:
    """The facts in the script's answer. Raises `RelaunchError` that names the first field of a wrong type."""
    data = _Answer(answer)
    where = _Answer(data.get("paths", dict), "facts.paths")
    gpus = data.maybe("gpus", list)
    return Facts(
        host=data.get("host", str),
        boot_id=data.get("boot_id", str),
        kernel=data.get("kernel", str),
        user=data.get("user", str),
        uid=data.get("uid", int),
        root=data.get("root", bool),
        paths=Paths(**{name: where.get(name, str) for name in ("home", "units", "cgroup", "shm", "state")}),
        python=data.get("python", str),
        systemd=data.maybe("systemd", int),
        tools=data.texts("tools"),
        cpus=data.get("cpus", int),
        memory=data.maybe("memory", int) or 0,
        memory_available=data.maybe("memory_available", int),
        limits=data.texts("limits"),
        gpus=None if gpus is None else sample_of(gpus),
        disks=data.each("disks", _disk),
        units=data.each("units", _unit),
        venvs=data.each("venvs", _venv),
        folders=data.each("folders", _folder),
        listeners=tuple(_listener(item) for item in data.get("listeners", list)),
        shm_free=data.maybe("shm_free", int),
        files=data.texts("files"),
        clock=data.real("clock"),
        missing=data.lines("missing"),
        expanded=data.texts("expanded"),
        kernel_log=data.lines("kernel_log"),
        kernel_log_read=data.get("kernel_log_read", bool),
    )
