"""Remove an old model folder, unless anything refers to it; runs on the node, stdlib only, Python 3.6.

ASK: {"op": "look" | "remove" | "go-on", "folder", "keep": [folder], "home", "units": [folder of unit files], "state",
"seconds"}. Answers {"used": [text], "bytes": what is there to be freed, "gone": bool, "begun": bytes that a removal under
way had to free when it began, 0 when none is}. The folder is renamed first, so that an interrupted removal leaves no half
model under the old name. "remove" begins, after every check, and works for about `seconds`; "go-on" works on what was
begun, by this run or by one that was interrupted.
"""

import json
import os
import pwd
import time
from typing import Any, Dict, Iterator, List

ASK: Dict[str, Any] = globals().get("ASK", {})
LEAVING = ".relaunch-removing"


def refused(ask: Dict[str, Any], folder: str) -> str:
    """Why this folder must not be removed, whoever uses it; "" when nothing is said against it."""
    parts = [part for part in folder.split("/") if part]
    if not folder.startswith("/") or len(parts) < 2 or ".." in parts:
        return "%s is no folder of a model" % folder
    for other in ask["keep"]:
        if inside(other, folder) or inside(folder, other):
            return "%s holds, or lies in, %s" % (folder, other)
    if inside(ask["home"], folder):
        return "%s holds the login's home" % folder
    if os.path.islink(folder):
        return "%s is a link" % folder
    if os.path.isdir(folder):
        names = os.listdir(folder)
        if not any(name == "config.json" or name.endswith(".safetensors") for name in names) and names != [".cache"]:
            return "%s does not look like a model folder: it has no config.json and no safetensors" % folder
    return ""


def inside(path: str, folder: str) -> bool:
    path, folder = os.path.realpath(path), os.path.realpath(folder)
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def users(ask: Dict[str, Any]) -> List[str]:
    """Unit files, releases and running processes that refer to the folder."""
    folder = ask["folder"].rstrip("/")
    names = {folder, os.path.realpath(folder)}
    spoken = names | set(in_home(names, [ask["home"]] + [entry.pw_dir for entry in pwd.getpwall()]))
    units = [path for place in ask["units"] for path in texts(place)]
    releases = list(texts(os.path.join(ask["state"], "releases")))
    found = ["the unit file %s" % path for path in units if mentions(path, spoken)]
    found += ["the release %s" % os.path.dirname(path) for path in releases if mentions(path, names)]
    found += processes(names)
    return list(dict.fromkeys(found))


def in_home(names: Any, homes: List[str]) -> Iterator[str]:
    """The folder as a unit file may write it from the service account's home."""
    for home in homes:
        for name in names:
            if len(home) > 1 and name.startswith(home.rstrip("/") + "/"):
                yield "%h" + name[len(home.rstrip("/")) :]
                yield "~" + name[len(home.rstrip("/")) :]


def texts(place: str) -> Iterator[str]:
    for base, _, files in os.walk(place):
        for name in files:
            yield os.path.join(base, name)


def mentions(path: str, names: Any) -> bool:
    """Whether the text names the folder, or something in it."""
    try:
        if os.stat(path).st_size > 4 << 20:
            return False
        with open(path, errors="replace") as file:
            text = file.read()
    except OSError:
        return False
    return any(named(text, name) for name in names)


def named(text: str, name: str) -> bool:
    """Whether `name` stands in the text as a whole path component, not as the beginning of a longer name."""
    at = text.find(name)
    while at >= 0:
        after = text[at + len(name) : at + len(name) + 1]
        if not (after.isalnum() or after in "._-") or after == "":
            return True
        at = text.find(name, at + 1)
    return False


def processes(names: Any) -> List[str]:
    """Processes that run with, stand in, hold open or map something of the folder."""
    found = []
    for pid in os.listdir("/proc"):
        if not pid.isdigit() or int(pid) == os.getpid():
            continue
        base = "/proc/" + pid
        if any(touches(base, name) for name in names):
            try:
                with open(base + "/comm") as file:
                    found.append("process %s (%s)" % (pid, file.read().strip()))
            except OSError:
                continue
    return found


def touches(base: str, name: str) -> bool:
    try:
        with open(base + "/cmdline", "rb") as file:
            words = file.read().decode(errors="replace").split("\0")
        if any(word == name or word.startswith(name + "/") for word in words):
            return True
        links = [base + "/cwd"] + [base + "/fd/" + number for number in os.listdir(base + "/fd")]
        for link in links:
            target = os.readlink(link)
            if target == name or target.startswith(name + "/"):
                return True
        with open(base + "/maps", errors="replace") as file:
            return any(" " + name + "/" in line for line in file)
    except OSError:
        return False


def weight(folder: str) -> int:
    """Bytes on disk, each inode once."""
    seen, total = set(), 0
    for base, _, names in os.walk(folder):
        for name in names:
            try:
                info = os.lstat(os.path.join(base, name))
            except OSError:
                continue
            if info.st_ino not in seen:
                seen.add(info.st_ino)
                total += info.st_blocks * 512
    return total


def begun(leaving: str) -> int:
    """What the removal under way had to free when it began; 0 when none is under way."""
    try:
        with open(leaving + ".json") as file:
            return int(json.load(file)["bytes"])
    except (OSError, ValueError, KeyError, TypeError):
        return weight(leaving)


def begin(folder: str, leaving: str, count: int) -> None:
    with open(leaving + ".json", "w") as file:
        json.dump({"bytes": count}, file)
        file.flush()
        os.fsync(file.fileno())
    if not os.path.isdir(leaving):
        os.rename(folder, leaving)


def sweep(leaving: str, seconds: float) -> None:
    """Remove what is in the folder, and at last the folder, for about so long."""
    deadline = time.monotonic() + seconds
    for base, folders, names in os.walk(leaving, topdown=False):
        for name in names + [name for name in folders if os.path.islink(os.path.join(base, name))]:
            os.unlink(os.path.join(base, name))
            if time.monotonic() > deadline:
                return
        os.rmdir(base)
    if os.path.lexists(leaving + ".json"):
        os.unlink(leaving + ".json")


def answer(ask: Dict[str, Any]) -> Dict[str, Any]:
    folder = ask["folder"].rstrip("/")
    leaving = folder + LEAVING
    used: List[str] = []
    if ask["op"] != "go-on":
        against = refused(ask, folder)
        used = [against] if against else users(ask)
    if ask["op"] == "remove" and not used and os.path.isdir(folder):
        begin(folder, leaving, weight(folder) + weight(leaving))
    if ask["op"] != "look" and not used:
        sweep(leaving, ask["seconds"])
    under_way = os.path.isdir(leaving)
    gone = not os.path.lexists(folder) and not under_way
    count = weight(folder) + weight(leaving)
    return {"used": used, "bytes": count, "gone": gone, "begun": begun(leaving) if under_way else 0}


if __name__ == "__main__":
    print(json.dumps(answer(ASK)))
