"""What was computed once from the catalogue, kept in files: compiled patterns and parsed YAML.

A file's name is the SHA-256 of everything that its content depends on, so that nothing is ever stale; its content begins with
its own SHA-256, so that a half-written or damaged file counts as absent. The folder is $XDG_CACHE_HOME/relaunch/triage
(~/.cache where that is unset), 0700, and is used only when it belongs to us and nobody else may write there. Where it cannot
be written, everything is computed anew; RELAUNCH_NO_CACHE in the environment does the same.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

MOST_FILES: Final = 48
"""Kept, the latest used first; a version of Relaunch needs some ten."""
_SUM: Final = 32


def kept(parts: Iterable[bytes], make: Callable[[], bytes | None]) -> bytes | None:
    """What `make` made when it was called with the same `parts` before, else what it makes now."""
    name = key(parts)
    known = load(name)
    if known is None:
        known = make()
        if known is not None:
            store(name, known)
    return known


def key(parts: Iterable[bytes]) -> str:
    """One name for all of `parts`; no two lists of parts run together."""
    whole = hashlib.sha256()
    for part in parts:
        whole.update(b"%d:" % len(part))
        whole.update(part)
    return whole.hexdigest()


def load(name: str) -> bytes | None:
    """The content of that name; None where there is none that can be trusted."""
    try:
        with open(_folder() / name, "rb") as file:
            data = file.read()
            os.utime(file.fileno())
    except OSError:
        return None
    return data[_SUM:] if hashlib.sha256(data[_SUM:]).digest() == data[:_SUM] else None


def store(name: str, content: bytes) -> None:
    """Keep `content`, whole or not at all."""
    try:
        folder = _folder(make=True)
        part = folder / f"{name}.{os.getpid()}.part"
        part.write_bytes(hashlib.sha256(content).digest() + content)
        os.replace(part, folder / name)
        _prune(folder)
    except OSError:
        return


def _folder(*, make: bool = False) -> Path:
    """Raises OSError where it must not be used."""
    if os.environ.get("RELAUNCH_NO_CACHE"):
        raise PermissionError("the cache is switched off")
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(base, "relaunch", "triage")
    if make:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    about = folder.stat()
    if about.st_uid != os.geteuid() or stat.S_IMODE(about.st_mode) & 0o022:
        raise PermissionError(f"{folder}: others may write there")
    return folder


def _prune(folder: Path) -> None:
    with os.scandir(folder) as files:
        found = sorted(((entry.stat().st_mtime, entry.path) for entry in files), reverse=True)
    for _, path in found[MOST_FILES:]:
        os.unlink(path)
