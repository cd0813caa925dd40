"""The fault `disk-full`, as a `sitecustomize` of the environments on the practice node: writes under ROOT/srv end in
ENOSPC once the tree there holds more than ROOT/disk-limit says. Room can be made again by removing files.

No file system is needed that only root could mount; what the writing program sees is what it would see on one.
"""

import builtins
import errno
import io
import os
from typing import Any

ROOT = os.environ.get("RELAUNCH_PRACTICE_ROOT", "")
PLACE = os.path.realpath(ROOT + "/srv") + os.sep
EVERY = 256 * 1024  # bytes between two looks at the tree


def limit() -> int | None:
    """Bytes that the tree may hold; None when the disk is not full any more."""
    try:
        with _open(ROOT + "/disk-limit") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


def held() -> int:
    """Bytes that it holds."""
    total = 0
    for folder, _, names in os.walk(PLACE):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size
            except OSError:
                continue
    return total


class Full(io.FileIO):
    """A file on the full disk."""

    unchecked = EVERY

    def write(self, data: Any, /) -> int:
        self.unchecked += memoryview(data).nbytes
        if self.unchecked >= EVERY:
            most = limit()
            if most is not None and held() >= most:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.name)
            self.unchecked = 0
        return int(super().write(data) or 0)


def opened(
    file: Any,
    mode: str = "r",
    buffering: int = -1,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
    closefd: bool = True,
    opener: Any = None,
) -> Any:
    """`open`, with a full disk under ROOT/srv for binary files that are written."""
    writes = "b" in mode and any(flag in mode for flag in "wax+") and isinstance(file, (str, bytes, os.PathLike))
    if not writes or "+" in mode or not os.path.abspath(os.fsdecode(file)).startswith(PLACE):
        return _open(file, mode, buffering, encoding, errors, newline, closefd, opener)
    raw = Full(os.fsdecode(file), mode.replace("b", ""), closefd, opener)
    return raw if buffering == 0 else io.BufferedWriter(raw, buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE)


_open = builtins.open
if ROOT:
    builtins.open = opened
    io.open = opened
