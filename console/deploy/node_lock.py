"""Runs on the node: take, give back or break the lock file, one at a time under a guard. Python 3.6, stdlib only.

ASK: {"action": "acquire" | "release" | "break", "path": the lock file, "owner": {...}, "judged": token or null,
"audit": {"path", "line"} or null: where and what to write down when the lock changed hands, "sweep": [folder]}.
Answer: {"held": true | false, "owner": {...} or null, "broke": {...} or null, "swept": [path]}.
Whoever takes the lock removes temporary files that a write which was cut off has left in `sweep` and below.
`judged` is the token of a lock that the asker has judged abandoned; only that very lock is taken over.
"""

import fcntl
import json
import os
import re
import stat
import time
from typing import Any

from console.node.agent.audit import append

ASK: "dict[str, Any]" = globals().get("ASK", {})
TEMPORARY = re.compile(r"\.relaunch-[0-9a-f]{16}$")
MOMENT = 60.0


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id") as handle:
        return handle.read().strip()


def read_owner(path: str) -> "dict[str, Any] | None":
    try:
        with open(path, encoding="utf-8") as handle:
            owner = json.load(handle)
    except FileNotFoundError:
        return None
    except ValueError:
        return {"token": "", "who": "unknown", "unreadable": True}
    return owner if isinstance(owner, dict) else {"token": "", "who": "unknown", "unreadable": True}


def write_owner(path: str, owner: "dict[str, Any]") -> None:
    # complete before it has the name: a reader never sees half of it, and link() fails when somebody was first
    fresh = "%s.%d.new" % (path, os.getpid())
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        os.write(descriptor, json.dumps(owner, sort_keys=True).encode() + b"\n")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    try:
        os.link(fresh, path)
    finally:
        os.unlink(fresh)


def stale(owner: "dict[str, Any]", judged: "str | None") -> bool:
    if owner.get("unreadable"):
        return True
    return owner.get("boot") != boot_id() or (judged is not None and owner.get("token") == judged)


def acquire(path: str, owner: "dict[str, Any]", judged: "str | None") -> "dict[str, Any]":
    owner = dict(owner, boot=boot_id())
    present = read_owner(path)
    if present is not None:
        mine = present.get("token") == owner.get("token")
        if not mine and not stale(present, judged):
            return {"held": False, "owner": present, "broke": None}
        os.unlink(path)
        present = None if mine else present
    write_owner(path, owner)
    return {"held": True, "owner": owner, "broke": present, "changed": True}


def release(path: str, owner: "dict[str, Any]") -> "dict[str, Any]":
    present = read_owner(path)
    if present is not None and present.get("token") == owner.get("token"):
        os.unlink(path)
        return {"held": False, "owner": None, "broke": None, "changed": True}
    return {"held": False, "owner": present, "broke": None}


def break_lock(path: str, judged: "str | None") -> "dict[str, Any]":
    present = read_owner(path)
    if present is not None and present.get("token") == judged:
        os.unlink(path)
        return {"held": False, "owner": None, "broke": present, "changed": True}
    return {"held": False, "owner": present, "broke": None}


def sweep(folders: "list[str]") -> "list[str]":
    """Remove what dead writers left (see node_file.py), and tell its paths. Others may write without the lock: a file is
    theirs when its writer still holds it locked, or when it was written a moment ago in this boot."""
    found = []
    for top in folders:
        for base, inside, names in os.walk(top):
            inside[:] = [name for name in inside if name != "overlays" and not name.endswith((".wants", ".requires"))]
            found += [os.path.join(base, name) for name in names if TEMPORARY.match(name)]
    return [path for path in found if abandoned(path) and removed(path)]


def abandoned(path: str) -> bool:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        facts = os.fstat(handle)
        now = time.time()
        booted = now - time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", 7))
        return stat.S_ISREG(facts.st_mode) and (facts.st_mtime < booted or facts.st_mtime < now - MOMENT)
    except OSError:
        return False
    finally:
        os.close(handle)


def removed(path: str) -> bool:
    try:
        os.unlink(path)
        return True
    except OSError:
        return False


def main() -> None:
    path = ASK["path"]
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    guard = os.open(path + ".guard", os.O_RDWR | os.O_CREAT, 0o644)
    fcntl.flock(guard, fcntl.LOCK_EX)  # freed by the kernel when this process ends, however it ends
    if ASK["action"] == "acquire":
        answer = acquire(path, ASK["owner"], ASK.get("judged"))
    elif ASK["action"] == "release":
        answer = release(path, ASK["owner"])
    else:
        answer = break_lock(path, ASK.get("judged"))
    audit = ASK.get("audit")
    changed = answer.pop("changed", False)
    if audit and changed:
        broke = (answer["broke"] or {}).get("who")
        append(audit["path"], dict(audit["line"], result="done" + (", was %s's" % broke if broke else "")))
    swept = sweep(ASK.get("sweep", [])) if answer["held"] and changed else []
    print(json.dumps(dict(answer, swept=swept)))


if __name__ == "__main__":
    main()
