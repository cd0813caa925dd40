"""Runs on the node: whose a process is, by /proc and its cgroup. Stdlib only, Python 3.6-safe."""

import os
import pwd
import time
from typing import Any, Dict, Iterable, List, Optional

ROOT = os.environ.get("RELAUNCH_PRACTICE_ROOT", "")
"""The sandbox folder of a practice node; empty on a real one."""


def read(path: str) -> str:
    try:
        with open(path, "rb") as source:
            return source.read().decode("utf-8", "replace")
    except OSError:
        return ""


def start_ticks(pid: int) -> Optional[int]:
    """Start time in clock ticks since boot; None when there is no such process here."""
    try:
        return int(read("/proc/%d/stat" % pid).rpartition(")")[2].split()[19])
    except (IndexError, ValueError):
        return None


def parent(pid: int) -> int:
    """The parent's pid; 0 when there is no such process here."""
    try:
        return int(read("/proc/%d/stat" % pid).rpartition(")")[2].split()[1])
    except (IndexError, ValueError):
        return 0


def started(ticks: int) -> float:
    """UNIX time of a start time in clock ticks since boot, to a hundredth of a second."""
    since_boot = time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", 7))
    return time.time() - (since_boot - ticks / os.sysconf("SC_CLK_TCK"))


def unit_of(pid: int) -> Optional[str]:
    """The systemd unit whose cgroup holds the process; None outside of any service or scope."""
    if ROOT:
        folders = [folder for folder, _, names in os.walk(ROOT + "/sys/fs/cgroup") if "cgroup.procs" in names]
        members = {member: folder for folder in folders for member in read(folder + "/cgroup.procs").split()}
        while pid > 1:  # a child of a member is one, also while the practice init has not written it down yet
            if str(pid) in members:
                return os.path.basename(members[str(pid)])
            pid = parent(pid)
        return None
    for line in read("/proc/%d/cgroup" % pid).splitlines():
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0" or controllers == "name=systemd":
            names = [part for part in path.split("/") if part.endswith((".service", ".scope"))]
            if names:
                return names[-1]
    return None


class Processes:
    """Owners of processes, looked up once per process and forgotten with it."""

    def __init__(self) -> None:
        self.known: Dict[int, List[Any]] = {}

    def who(self, pid: int) -> Optional[List[Any]]:
        """[owner, command, unit, start ticks]; None for a process that cannot be seen from here."""
        ticks = start_ticks(pid)
        if ticks is None:
            return None
        cached = self.known.get(pid)
        if cached is not None and cached[3] == ticks:
            return cached
        try:
            uid = os.stat("/proc/%d" % pid).st_uid
        except OSError:
            return None
        try:
            owner = pwd.getpwuid(uid).pw_name
        except KeyError:
            owner = str(uid)
        command = read("/proc/%d/cmdline" % pid).replace("\0", " ").strip() or read("/proc/%d/comm" % pid).strip()
        self.known[pid] = [owner, command[:200], unit_of(pid), ticks]
        return self.known[pid]

    def of(self, pids: Iterable[int]) -> Dict[str, List[Any]]:
        """The owners of those of these processes that can be seen, by pid as text."""
        found = {}
        for pid in pids:
            person = self.who(pid)
            if person is not None:
                found[str(pid)] = person
        self.known = {pid: person for pid, person in self.known.items() if str(pid) in found}
        return found
