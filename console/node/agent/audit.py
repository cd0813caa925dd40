"""Runs on the node: one line more in an append-only file, whole and on disk. Stdlib only, Python 3.6-safe."""

import fcntl
import json
import os
import time
from typing import Any, Dict


def stamp(when: float) -> str:
    """UNIX seconds as UTC text to the millisecond."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(when)) + ".%03dZ" % int(when % 1 * 1000)


def append(path: str, line: Dict[str, Any]) -> bool:
    """Add `line`, stamped with the node's time; False when the file cannot be written, which stops nobody's work.

    A line that a power cut left half written is closed first, so that it spoils no other.
    """
    text = json.dumps(dict({"time": stamp(time.time())}, **line), ensure_ascii=False)
    try:
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o640)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        size = os.fstat(handle).st_size
        torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
        os.write(handle, (("\n" if torn else "") + text + "\n").encode("utf-8", "replace"))
        os.fsync(handle)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True
