"""Runs on the node as root: what a service has before it stops, and what it leaves behind. Stdlib only, Python 3.6-safe.

ASK: op; groups (control groups) and cgroup (their mount), shm (folder).
  before: answers {"processes": [[pid, ticks, uid, command]], "sockets": [[port, inode]] on which they listen, "shm":
          [[name, inode]], "since": time} of the groups.
  after:  processes and sockets (as above), uids, wait (seconds): waits until all is gone or the time is over, and answers
          what is left, with the ports of these very sockets, the ports that are somebody else's by now ("taken"), and the
          time. Times are UNIX seconds by the node's clock.
  end:    processes (as above) and wait: ends exactly these, by pid and start time, and answers those that are left.
  clean:  shm (recorded [[name, inode]]), uids, since, until: removes shared memory that is theirs and that nobody uses.
"""

import fnmatch
import glob
import json
import os
import signal
import time
from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

from console.node.agent.processes import ROOT, read, start_ticks, started

ASK: Dict[str, Any] = globals().get("ASK", {})
PATTERNS = ("psm_*", "sem.mp-*", "nccl-*", "torch_*")


def state_of(pid: int) -> str:
    """The letter of the process state; X when there is none."""
    fields = read("/proc/%d/stat" % pid).rpartition(")")[2].split()
    return fields[0] if fields else "X"


def command_of(pid: int) -> str:
    line = read("/proc/%d/cmdline" % pid).replace("\0", " ").strip()
    return (line or read("/proc/%d/comm" % pid).strip())[:200]


def members(group: str) -> List[int]:
    """Pids in a control group and those below it."""
    found: List[int] = []
    for folder, _, names in os.walk(ASK["cgroup"] + group):
        if "cgroup.procs" in names:
            found += [int(pid) for pid in read(folder + "/cgroup.procs").split() if pid.isdigit()]
    return [pid for pid in found if state_of(pid) not in "ZX"]


def process(pid: int) -> Optional[List[Any]]:
    ticks = start_ticks(pid)
    try:
        uid = os.stat("/proc/%d" % pid).st_uid
    except OSError:
        return None
    return None if ticks is None else [pid, ticks, uid, command_of(pid)]


def shm_names_of(pid: int) -> Set[str]:
    """Names of the shared-memory files that a process has mapped or open."""
    top = os.path.realpath(ASK["shm"]) + "/"
    found = {line.split(None, 5)[5] for line in read("/proc/%d/maps" % pid).splitlines() if top in line}
    for link in glob.iglob("/proc/%d/fd/*" % pid):
        try:
            found.add(os.readlink(link))
        except OSError:
            continue
    return {path[len(top) :] for path in found if path.startswith(top) and not path.endswith(" (deleted)")}


def shm_files() -> Iterator[Tuple[str, os.stat_result]]:
    """Files whose names are those of Python's shared memory, its semaphores, NCCL's or torch's."""
    try:
        listed = sorted(os.listdir(ASK["shm"]))
    except OSError:
        return
    for name in listed:
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in PATTERNS):
            try:
                yield name, os.lstat(os.path.join(ASK["shm"], name))
            except OSError:
                continue


def before() -> Dict[str, Any]:
    pids = sorted({pid for group in ASK["groups"] for pid in members(group)})
    names: Set[str] = set()
    for pid in pids:
        names |= shm_names_of(pid)
    processes = [one for one in map(process, pids) if one is not None]
    return {
        "processes": processes,
        "sockets": sockets_of(pids),
        "shm": [[name, facts.st_ino] for name, facts in shm_files() if name in names],
        "since": min(started(one[1]) for one in processes) - 0.02 if processes else None,  # a tick is 10 ms
    }


def listening() -> Dict[int, Set[int]]:
    """The inodes of the sockets that listen, by TCP port. A practice node has a socket's process for its inode."""
    found: Dict[int, Set[int]] = {}
    if ROOT:
        for path in glob.iglob(glob.escape(ROOT) + "/net/*.json"):
            try:
                with open(path) as source:
                    pid = int(json.load(source)["pid"])
                port = int(os.path.basename(path)[: -len(".json")])
            except (OSError, ValueError, KeyError, TypeError):
                continue
            if state_of(pid) not in "ZX":
                found.setdefault(port, set()).add(pid)
        return found
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in read(table).splitlines()[1:]:
            fields = line.split()
            if len(fields) > 9 and fields[3] == "0A":
                found.setdefault(int(fields[1].rpartition(":")[2], 16), set()).add(int(fields[9]))
    return found


def sockets_of(pids: List[int]) -> List[List[int]]:
    """[port, inode] of what these processes listen on."""
    theirs: Set[int] = set(pids) if ROOT else set()
    for pid in pids if not ROOT else ():
        for link in glob.iglob("/proc/%d/fd/*" % pid):
            try:
                target = os.readlink(link)
            except OSError:
                continue
            if target.startswith("socket:["):
                theirs.add(int(target[len("socket:[") : -1]))
    return sorted([port, inode] for port, inodes in listening().items() for inode in inodes & theirs)


def left() -> Dict[str, Any]:
    alive = [one for one in ASK["processes"] if start_ticks(one[0]) == one[1] and state_of(one[0]) not in "ZX"]
    inside = [one for group in ASK["groups"] for one in map(process, members(group)) if one is not None]
    known = [one[0] for one in alive]
    now = listening()
    return {
        "processes": alive + [one for one in inside if one[0] not in known],
        "ports": sorted({port for port, inode in ASK["sockets"] if inode in now.get(port, ())}),
    }


def taken() -> List[int]:
    """Ports that were theirs and that somebody else listens on by now."""
    now, had = listening(), {(port, inode) for port, inode in ASK["sockets"]}
    return sorted({port for port, _ in had if any((port, inode) not in had for inode in now.get(port, ()))})


def after() -> Dict[str, Any]:
    """Looks five times a second: the exit of processes that are not our children gives no event on every kernel."""
    deadline = time.monotonic() + ASK["wait"]
    while True:
        found = left()
        if not any(found.values()) or time.monotonic() > deadline:
            names = [name for name, facts in shm_files() if facts.st_uid in ASK["uids"]]
            return dict(found, taken=taken(), shm=names, now=time.time())
        time.sleep(0.2)


def same(one: List[Any]) -> bool:
    """The very process still lives: a pid alone may be somebody else's by now."""
    return start_ticks(one[0]) == one[1] and state_of(one[0]) not in "ZX"


def end() -> Dict[str, Any]:
    """SIGTERM, and SIGKILL for what is left after `wait` seconds."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + ASK["wait"]
        for one in ASK["processes"]:
            try:
                if same(one):
                    os.kill(one[0], number)
            except OSError:
                pass
        while any(map(same, ASK["processes"])) and time.monotonic() < deadline:
            time.sleep(0.05)  # the exit of processes that are not our children gives no event on every kernel
    return {"processes": [one for one in ASK["processes"] if same(one)]}


def users() -> Set[str]:
    """Names of shared-memory files that any process uses."""
    found: Set[str] = set()
    for name in os.listdir("/proc"):
        if name.isdigit():
            found |= shm_names_of(int(name))
    return found


def clean() -> Dict[str, Any]:
    """A file is theirs when one of their processes had it, or when it is of their account and was made while they ran."""
    recorded = {(name, inode) for name, inode in ASK["shm_files"]}
    used = users()
    removed, kept = [], []
    for name, facts in list(shm_files()):
        ours = (name, facts.st_ino) in recorded or (
            facts.st_uid in ASK["uids"] and ASK["since"] is not None and ASK["since"] <= facts.st_ctime <= ASK["until"]
        )
        if not ours or name in used:
            kept.append([name, "in use" if name in used else "not known to be ours"])
            continue
        try:
            os.unlink(os.path.join(ASK["shm"], name))
            removed.append([name, facts.st_size])
        except OSError as failure:
            kept.append([name, failure.strerror or "cannot be removed"])
    return {"removed": removed, "kept": kept}


print(json.dumps({"before": before, "after": after, "end": end, "clean": clean}[ASK["op"]]()))
