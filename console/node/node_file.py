"""Reads or replaces one file. Runs on the node as root, where the login alone may not: stdlib only, Python 3.6 and newer.

ASK: op "read" (path, limit) answers {"data": base64}; op "write" (path, mode, data as base64) answers {"written": bytes}.
What goes wrong answers {"missing": true}, {"full": true} for the disk, or {"error": text}; then the old content stands and no temporary file is left.
"""

import base64
import errno
import fcntl
import json
import os
import stat
from typing import Any, Dict

ASK: Dict[str, Any] = globals().get("ASK", {})


def read(path: str, limit: int) -> Dict[str, Any]:
    with open(path, "rb", buffering=0) as source:
        if not stat.S_ISREG(os.fstat(source.fileno()).st_mode):
            return {"error": "it is no regular file"}
        parts = []
        room = limit + 1
        while room > 0:
            part = source.read(min(room, 1 << 20))
            if not part:
                break
            parts.append(part)
            room -= len(part)
    if room <= 0:
        return {"error": "it has more than {} bytes".format(limit)}
    return {"data": base64.b64encode(b"".join(parts)).decode()}


def held(descriptor: int) -> None:
    """Tells whoever sweeps what dead writers left that this one lives; a file system without locks has it by its age."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError:
        pass


def write(path: str, mode: int, data: bytes) -> Dict[str, Any]:
    folder = os.path.dirname(path) or "."
    temporary = os.path.join(folder, ".relaunch-" + base64.b16encode(os.urandom(8)).decode().lower())
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    try:
        try:
            held(descriptor)
            os.fchmod(descriptor, mode)
            left = memoryview(data)
            while left:
                left = left[os.write(descriptor, left) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.rename(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    where = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(where)
    except OSError:
        pass  # some file systems cannot sync a folder; the rename itself is done
    finally:
        os.close(where)
    return {"written": len(data)}


def main() -> Dict[str, Any]:
    path = ASK["path"]
    try:
        if ASK["op"] == "read":
            kind = os.stat(path).st_mode
            if not stat.S_ISREG(kind):  # opening a pipe would wait for its other end
                return {"error": "it is a folder" if stat.S_ISDIR(kind) else "it is no regular file"}
            return read(path, ASK["limit"])
        return write(path, ASK["mode"], base64.b64decode(ASK["data"]))
    except FileNotFoundError:
        return {"missing": True}
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):  # told by number: its words are in the node's language
            return {"full": True}
        return {"error": error.strerror or str(error)}


print(json.dumps(main()))
