"""Runs on the node as root: whether an account can be run under, and reach what its service needs. Stdlib only, Python 3.6.

ASK: {"user", "environment_file": path or null, "folder": the model's, "reach": [path]}. Answers {"user": bool, "file":
null | "missing" | "no file" | "open" (to every account) | "good", "parent": [nearest folder that is there, why nothing
can be written in it or ""], "reach": [[path, the first thing on the way that the account may not pass or read]]}.
"""

import json
import os
import pwd
import stat
from typing import Any, Dict, List, Optional

ASK: Dict[str, Any] = globals().get("ASK", {})


def account(name: str) -> Optional[pwd.struct_passwd]:
    try:
        return pwd.getpwuid(int(name)) if name.isdigit() else pwd.getpwnam(name)
    except KeyError:
        return None


def file_state(path: str) -> str:
    """systemd reads an environment file as root, so who else may is a matter of secrecy alone."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return "missing"
    if not stat.S_ISREG(mode):
        return "no file"
    return "open" if mode & stat.S_IROTH else "good"


def nearest(path: str) -> str:
    """The path, or the nearest folder above it that is there."""
    while not os.path.lexists(path) and path != "/":
        path = os.path.dirname(path) or "/"
    return path


def parent(folder: str) -> List[str]:
    place = nearest(folder)
    if not os.path.isdir(place):
        return [place, "it is no folder"]
    if os.access(place, os.W_OK | os.X_OK):
        return [place, ""]
    read_only = os.statvfs(place).f_flag & os.ST_RDONLY
    return [place, "its file system is read-only" if read_only else "it cannot be written to, not even by root"]


def barrier(path: str) -> str:
    """The first place on the way to `path` that this process may not pass or read, as far as the way is there; or ""."""
    place = "/"
    for part in [""] + [part for part in nearest(os.path.realpath(path)).split("/") if part]:
        place = os.path.join(place, part)
        if not os.access(place, os.X_OK if os.path.isdir(place) else os.R_OK):
            return place
    return ""


def reached(who: pwd.struct_passwd, paths: List[str]) -> List[List[str]]:
    """`barrier` of each path for an account: asked by a child that has become it, so that groups and ACLs count."""
    if os.geteuid() != 0 or who.pw_uid == 0:
        return []
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.initgroups(who.pw_name, who.pw_gid)
            os.setgid(who.pw_gid)
            os.setuid(who.pw_uid)
            os.write(writer, json.dumps([[path, barrier(path)] for path in paths]).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as told:
        answer = told.read()
    os.waitpid(child, 0)
    return [row for row in json.loads(answer.decode() or "[]") if row[1]]


def main() -> Dict[str, Any]:
    who = account(ASK["user"])
    return {
        "user": who is not None,
        "file": file_state(ASK["environment_file"]) if ASK["environment_file"] else None,
        "parent": parent(ASK["folder"]),
        "reach": reached(who, ASK["reach"]) if who is not None else [],
    }


print(json.dumps(main()))
