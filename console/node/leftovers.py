"""What a stopped service leaves behind: processes, listening ports, shared memory.

Recorded before the stop, so that afterwards "ours" is known by pid and start time and by inode, never by a name pattern.
Everything here needs root, since other accounts' processes are hidden from anyone else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from console.node import agent
from console.node.base import Node
from console.node.facts import Facts
from console.node.script import ask
from console.text import plural

UNKNOWN_UID = -1
_SCRIPT = Path(__file__).with_name("node_leftovers.py")


@dataclass(frozen=True, slots=True)
class Process:
    """A process by identity: `ticks` is its start time in clock ticks since boot."""

    pid: int
    ticks: int
    uid: int
    command: str

    def __str__(self) -> str:
        return f"pid {self.pid} ({self.command or 'unknown program'})"


@dataclass(frozen=True, slots=True)
class Possessions:
    """What services had before they were stopped. `since` and `until` bound their life in the node's UNIX seconds."""

    groups: tuple[str, ...] = ()
    processes: tuple[Process, ...] = ()
    sockets: tuple[tuple[int, int], ...] = ()
    """(port, inode) of the sockets that they listened on: a port alone may be somebody else's by now."""
    shm: tuple[tuple[str, int], ...] = ()
    """(name, inode) of shared-memory files that their processes had open or mapped."""
    since: float | None = None
    until: float | None = None

    @property
    def uids(self) -> tuple[int, ...]:
        return tuple(sorted({process.uid for process in self.processes}))

    @property
    def ports(self) -> tuple[int, ...]:
        return tuple(sorted({port for port, _ in self.sockets}))


def possessions_of(data: Mapping[str, Any]) -> Possessions:
    """`dataclasses.asdict` undone. Raises KeyError, TypeError or ValueError."""
    return Possessions(
        groups=tuple(map(str, data["groups"])),
        processes=tuple(Process(**one) for one in data["processes"]),
        sockets=_pairs(data["sockets"]),
        shm=tuple((str(name), int(inode)) for name, inode in data["shm"]),
        since=data["since"],
        until=data["until"],
    )


@dataclass(frozen=True, slots=True)
class Left:
    """What is still there. `shm` names files of the service's account that look like its shared memory; `taken` are ports
    that were theirs and that somebody else listens on by now."""

    processes: tuple[Process, ...]
    ports: tuple[int, ...]
    taken: tuple[int, ...]
    shm: tuple[str, ...]
    time: float
    """The node's UNIX time of this look."""

    @property
    def clean(self) -> bool:
        return not self.processes and not self.ports

    def __str__(self) -> str:
        parts = [str(process) for process in self.processes[:8]]
        if len(self.processes) > 8:
            parts.append(f"{len(self.processes) - 8} more processes")
        parts += [f"port {port} still listened on" for port in self.ports]
        return ", ".join(parts) or "nothing"


@dataclass(frozen=True, slots=True)
class Cleaned:
    """`removed`: (name, bytes); `kept`: (name, why)."""

    removed: tuple[tuple[str, int], ...]
    kept: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        if not self.removed:
            return "no shared memory left behind"
        return f"{plural(len(self.removed), 'ownerless shared-memory file')} removed"


async def _run(node: Node, facts: Facts, op: str, mutates: bool, timeout: float, **more: Any) -> Mapping[str, Any]:
    question = {"op": op, "cgroup": facts.paths.cgroup, "shm": facts.paths.shm, **more}
    source = agent.program(_SCRIPT.read_text(), ("processes",))
    answer = await ask(node, f"leftovers, {op}", source, question, sudo=True, mutates=mutates, timeout=timeout)
    return answer if isinstance(answer, Mapping) else {}


def _processes(rows: Sequence[Sequence[Any]]) -> tuple[Process, ...]:
    return tuple(Process(int(pid), int(ticks), int(uid), str(command)) for pid, ticks, uid, command in rows)


def _pairs(rows: Sequence[Sequence[Any]]) -> tuple[tuple[int, int], ...]:
    return tuple((int(port), int(inode)) for port, inode in rows)


async def possessions(node: Node, facts: Facts, groups: Sequence[str]) -> Possessions:
    """What the services in these control groups have right now."""
    answer = await _run(node, facts, "before", False, 60, groups=list(groups))
    return Possessions(
        groups=tuple(groups),
        processes=_processes(answer["processes"]),
        sockets=_pairs(answer["sockets"]),
        shm=tuple((str(name), int(inode)) for name, inode in answer["shm"]),
        since=None if answer["since"] is None else float(answer["since"]),
    )


async def what_is_left(node: Node, facts: Facts, had: Possessions, *, wait: float = 10.0) -> Left:
    """What is left of them, after waiting on the node at most `wait` seconds for all of it to go."""
    more = {
        "groups": list(had.groups),
        "processes": [[one.pid, one.ticks, one.uid, one.command] for one in had.processes],
        "sockets": [list(one) for one in had.sockets],
        "uids": list(had.uids),
        "wait": wait,
    }
    answer = await _run(node, facts, "after", False, wait + 60, **more)
    return Left(
        processes=_processes(answer["processes"]),
        ports=tuple(int(port) for port in answer["ports"]),
        taken=tuple(int(port) for port in answer["taken"]),
        shm=tuple(str(name) for name in answer["shm"]),
        time=float(answer["now"]),
    )


async def end_processes(
    node: Node, facts: Facts, processes: Sequence[Process], *, wait: float = 5.0
) -> tuple[Process, ...]:
    """End exactly these, by pid and start time: SIGTERM, then SIGKILL; those that are left, as in the D state."""
    rows = [[one.pid, one.ticks, one.uid, one.command] for one in processes]
    answer = await _run(node, facts, "end", True, 2 * wait + 60, processes=rows, wait=wait)
    return _processes(answer["processes"])


async def remove_shm(node: Node, facts: Facts, had: Possessions) -> Cleaned:
    """Remove shared-memory files that were theirs and that no process has open or mapped. Others are never touched."""
    more = {
        "groups": [],
        "shm_files": [list(item) for item in had.shm],
        "uids": list(had.uids),
        "since": had.since,
        "until": had.until if had.until is not None else 0,
    }
    answer = await _run(node, facts, "clean", True, 60, **more)
    return Cleaned(
        removed=tuple((str(name), int(size)) for name, size in answer["removed"]),
        kept=tuple((str(name), str(why)) for name, why in answer["kept"]),
    )
