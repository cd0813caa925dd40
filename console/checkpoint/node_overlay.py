"""Overlay folders and in-place edits of a model folder; runs on the node, stdlib only, Python 3.6.

An overlay holds a symbolic link to every file of the pristine folder (its `.cache` and `.git` excepted) and the
rewritten JSON as real files. It is built beside its place and renamed there; the manifest stands beside it, not in it.
The pristine folder is never written to. An in-place edit keeps the original under a name that no loader globs, and
replaces a link itself, never what it points to.

ASK: {"op": "build" | "verify" | "remove" | "edit" | "restore" | "read", "source", "overlay", "manifest", "state",
"files": {relative: {"before", "after", "data" (base64)}}, ...}. Answers one JSON object, with "problems" a list.
"""

import base64
import hashlib
import json
import os
import shutil
import stat
from typing import Any, Dict, Iterator, List, Tuple

ASK: Dict[str, Any] = globals().get("ASK", {})

SKIPPED = (".cache", ".git")
BACKUP = ".before-relaunch"


def files_of(folder: str) -> Iterator[str]:
    """Relative paths of all files, links included."""
    for base, folders, names in os.walk(folder):
        if base == folder:
            folders[:] = [name for name in folders if name not in SKIPPED]
        linked = [name for name in folders if os.path.islink(os.path.join(base, name))]
        folders[:] = sorted(name for name in folders if name not in linked)
        for name in sorted(names + linked):
            if not name.endswith(BACKUP):
                yield os.path.relpath(os.path.join(base, name), folder)


def digest(path: str) -> str:
    """sha256 of a small file, or "" when it is not there."""
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except FileNotFoundError:
        return ""


def write_file(path: str, data: bytes, mode: int) -> None:
    """A new file, on disk when this returns."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fchmod(file.fileno(), mode)
        os.fsync(file.fileno())


def replace_file(path: str, data: bytes, mode: int) -> None:
    """Write beside `path` and rename over it."""
    beside = path + ".relaunch-%d" % os.getpid()
    try:
        write_file(beside, data, mode)
        os.replace(beside, path)
    finally:
        if os.path.lexists(beside):
            os.unlink(beside)
    sync_folder(os.path.dirname(path))


def sync_folder(path: str) -> None:
    """Make the renames in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)


def build(ask: Dict[str, Any]) -> Dict[str, Any]:
    """Make the overlay, unless a good one stands there."""
    source, overlay, files = ask["source"], ask["overlay"], ask["files"]
    changed = [name for name in files if digest(os.path.join(source, name)) != files[name]["before"]]
    if changed:
        return {"problems": ["%s changed while it was being patched" % name for name in changed]}
    if os.path.isdir(overlay) and not verify(ask)["problems"]:
        return {"problems": [], "made": False}
    parent = os.path.dirname(overlay)
    os.makedirs(parent, exist_ok=True)
    for folder in {parent, ask.get("state", parent)}:
        passable(folder)
    fresh = overlay + ".new-%d" % os.getpid()
    old = overlay + ".old-%d" % os.getpid()
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        os.mkdir(fresh)
        fill(source, fresh, files)
        os.chmod(fresh, 0o755)
        if os.path.lexists(overlay):
            os.rename(overlay, old)
        os.rename(fresh, overlay)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
    sync_folder(parent)
    replace_file(overlay + ".json", json.dumps(ask["manifest"], indent=1).encode(), 0o644)
    answer = verify(ask)
    answer["made"] = True
    return answer


def fill(source: str, target: str, files: Dict[str, Any]) -> None:
    """Links to everything in `source`, and the rewritten files."""
    for name in files_of(source):
        place = os.path.join(target, name)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        if name in files:
            write_file(place, base64.b64decode(files[name]["data"]), 0o644)
        else:
            os.symlink(os.path.join(source, name), place)


def passable(folder: str) -> None:
    """Let the service's account pass through a folder of ours; what is in it stays as closed as it is."""
    mode = stat.S_IMODE(os.stat(folder).st_mode)
    if os.stat(folder).st_uid == os.geteuid() and mode & 0o011 != 0o011:
        os.chmod(folder, mode | 0o011)


def verify(ask: Dict[str, Any]) -> Dict[str, Any]:
    """Read the overlay again: rewritten files by hash, originals by hash, links by target, nothing missing, no surplus."""
    source, overlay, files = ask["source"], ask["overlay"], ask["files"]
    problems: List[str] = []
    if not os.path.isdir(overlay):
        return {"problems": ["the overlay %s is not there" % overlay], "links": 0}
    for name in files:
        if digest(os.path.join(source, name)) != files[name]["before"]:
            problems.append("%s in the download is not the file that was patched" % name)
        place = os.path.join(overlay, name)
        if os.path.islink(place):
            problems.append("%s in the overlay is a link" % name)
        elif digest(place) != files[name]["after"]:
            problems.append("%s in the overlay does not hold the patch" % name)
    wanted = set(files_of(source))
    there = set(files_of(overlay))
    links = 0
    for name in sorted(wanted - set(files)):
        place = os.path.join(overlay, name)
        if name not in there:
            problems.append("%s is missing in the overlay" % name)
        elif not os.path.islink(place) or os.readlink(place) != os.path.join(source, name):
            problems.append("%s in the overlay does not point to the download" % name)
        elif not os.path.exists(place):
            problems.append("%s points to nothing" % name)
        else:
            links += 1
    problems += ["%s in the overlay is not in the download" % name for name in sorted(there - wanted)]
    return {"problems": problems, "links": links}


def remove(ask: Dict[str, Any]) -> Dict[str, Any]:
    """Remove an overlay and its manifest; links are removed, never what they point to."""
    overlay = ask["overlay"]
    if os.path.islink(overlay):
        os.unlink(overlay)
    else:
        shutil.rmtree(overlay, ignore_errors=True)
    if os.path.lexists(overlay + ".json"):
        os.unlink(overlay + ".json")
    return {"problems": []}


def edit(ask: Dict[str, Any]) -> Dict[str, Any]:
    """Rewrite files where they stand. The original stays beside as NAME.before-relaunch: the same inode, or the link."""
    problems = []
    for name, want in sorted(ask["files"].items()):
        path = os.path.join(ask["source"], name)
        if digest(path) == want["after"]:
            continue
        if digest(path) != want["before"]:
            problems.append("%s changed while it was being patched" % name)
            continue
        keep(path)
        info = os.stat(path)
        replace_file(path, base64.b64decode(want["data"]), stat.S_IMODE(info.st_mode))
        if os.geteuid() == 0:
            os.chown(path, info.st_uid, info.st_gid)
        if digest(path) != want["after"]:
            problems.append("%s does not hold the patch after it was written" % name)
    return {"problems": problems}


def keep(path: str) -> None:
    """Keep what stands at `path` under its backup name; an older backup of other content is replaced."""
    backup = path + BACKUP
    if os.path.lexists(backup):
        os.unlink(backup)
    if os.path.islink(path):
        os.symlink(os.readlink(path), backup)
        return
    try:
        os.link(path, backup)
    except OSError:  # a file system without hard links
        shutil.copy2(path, backup)


def restore(ask: Dict[str, Any]) -> Dict[str, Any]:
    """Bring every backed-up original back; answers with the sha256 of each."""
    restored = {}
    for base, folders, names in os.walk(ask["source"]):
        if base == ask["source"]:
            folders[:] = [name for name in folders if name not in SKIPPED]
        for name in names:
            if name.endswith(BACKUP):
                path = os.path.join(base, name[: -len(BACKUP)])
                os.replace(os.path.join(base, name), path)
                sync_folder(base)
                restored[os.path.relpath(path, ask["source"])] = digest(path)
    return {"problems": [], "restored": restored}


def read(ask: Dict[str, Any]) -> Dict[str, Any]:
    """The bytes of the JSON files that may hold a scheme, and which of them are kept originals."""
    found: Dict[str, Dict[str, Any]] = {}
    for name in ask["names"]:
        path = os.path.join(ask["source"], name)
        if os.path.exists(path):
            with open(path, "rb") as file:
                data = file.read(int(ask.get("limit", 64 << 20)))
            found[name] = {"data": base64.b64encode(data).decode(), "backup": os.path.lexists(path + BACKUP)}
    return {"problems": [], "files": found}


def answer(ask: Dict[str, Any]) -> Dict[str, Any]:
    """The answer to one ASK."""
    operations: Tuple[Any, ...] = (build, verify, remove, edit, restore, read)
    for operation in operations:
        if operation.__name__ == ask["op"]:
            result: Dict[str, Any] = operation(ask)
            return result
    raise ValueError("unknown operation %r" % ask["op"])


if __name__ == "__main__":
    print(json.dumps(answer(ASK)))
