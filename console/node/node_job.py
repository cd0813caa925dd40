"""Runs on the node: starts a detached job or adopts a live one, tells a job's state, follows a job's log to its end.

ASK: op (start, state, follow), name, unit, folder, and for start: wrapper, job, files, secrets, user, command; for
follow: journal (argv without the matches), cursor. The answer is the state as one JSON object; `follow` prints journal
entries first, as journalctl gives them.
"""

import base64
import fcntl
import json
import os
import pwd
import select
import shutil
import subprocess
import sys
import time
from typing import Any, Dict, Optional, Tuple

ASK: Dict[str, Any] = globals().get("ASK", {})
LIVE = ("active", "activating", "reloading", "deactivating")


def shown(unit: str) -> Tuple[str, str]:
    """(ActiveState, InvocationID) of the unit; inactive when systemd knows none."""
    call = ["systemctl", "show", "-p", "ActiveState,InvocationID", unit]
    out = subprocess.check_output(call, stdin=subprocess.DEVNULL).decode("utf-8", "replace")
    block = dict(line.partition("=")[::2] for line in out.splitlines() if "=" in line)
    return block.get("ActiveState", "inactive"), block.get("InvocationID", "")


def read_json(name: str) -> Optional[Dict[str, Any]]:
    try:
        with open(os.path.join(ASK["folder"], name)) as source:
            found = json.load(source)
            return found if isinstance(found, dict) else None
    except (OSError, ValueError):
        return None


def runs(status: Dict[str, Any]) -> bool:
    """True while the very process that the status names is alive in this boot."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as source:
            if source.read().strip() != status["boot"]:
                return False
        with open("/proc/%d/stat" % status["pid"]) as source:
            fields = source.read().rpartition(")")[2].split()
        return bool(int(fields[19]) == status["ticks"] and fields[0] not in "ZX")
    except (OSError, IndexError, KeyError, ValueError):
        return False


def state() -> Dict[str, Any]:
    """What is known of the job: from the unit, the status file, and the process itself."""
    active, invocation = shown(ASK["unit"])
    status, job = read_json("status.json"), read_json("job.json")
    answer = dict(status or {})
    live = active in LIVE
    if live and (status is None or status.get("invocation") not in ("", invocation)):
        answer = {"phase": "running", "invocation": invocation}
    elif status is None:
        answer["phase"] = "absent" if job is None else "lost"
    elif status.get("state") == "ended":
        answer["phase"] = "done" if status.get("code") == 0 else "failed"
    else:
        answer["phase"] = "running" if live or runs(status) else "lost"
    if live and not answer.get("invocation"):
        answer["invocation"] = invocation
    answer["digest"] = (job or {}).get("digest", "")
    return answer


def sweep(root: str) -> None:
    """Delete secret files that a killed job of any name left behind: its unit is gone, so nobody needs them."""
    for name in os.listdir(root):
        folder = os.path.join(root, name)
        try:
            with open(os.path.join(folder, "job.json")) as source:
                job = json.load(source)
            left = [os.path.join(folder, item) for item in job["secrets"]]
            if any(os.path.exists(item) for item in left) and shown(job["unit"])[0] not in LIVE:
                for item in left:
                    os.unlink(item)
        except (OSError, ValueError, KeyError, TypeError, subprocess.CalledProcessError):
            continue


def put(path: str, data: bytes, owner: Any) -> None:
    """A new file that only its owner can read, from the first moment."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as target:
        target.write(data)
    give(path, owner)


def give(path: str, owner: Any) -> None:
    if owner is not None and os.geteuid() == 0:
        os.chown(path, owner.pw_uid, owner.pw_gid)


def fill(owner: Any) -> None:
    """The job's folder with everything in it, made anew."""
    folder = ASK["folder"]
    if os.path.lexists(folder):
        shutil.rmtree(folder)
    os.mkdir(folder, 0o700)
    give(folder, owner)
    contents = [(name, base64.b64decode(data)) for name, data in ASK["files"].items()]
    contents += [(name, text.encode()) for name, text in ASK["secrets"].items()]
    contents += [("run.py", ASK["wrapper"].encode()), ("job.json", json.dumps(ASK["job"]).encode())]
    for name, data in contents:
        parts = name.split("/")[:-1]
        for depth in range(len(parts)):
            inner = os.path.join(folder, *parts[: depth + 1])
            if not os.path.isdir(inner):
                os.mkdir(inner, 0o700)
                give(inner, owner)
        put(os.path.join(folder, name), data, owner)


def start() -> Dict[str, Any]:
    root = os.path.dirname(ASK["folder"])
    os.makedirs(root, mode=0o755, exist_ok=True)
    owner = pwd.getpwnam(ASK["user"]) if ASK["user"] else None
    with open(os.path.join(root, ".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = state()
        if before["phase"] == "running":
            return dict(before, adopted=True)
        sweep(root)
        try:
            fill(owner)
        except OSError as failure:
            shutil.rmtree(ASK["folder"], ignore_errors=True)
            return {"phase": "unwritten", "error": "%s: %s" % (ASK["folder"], failure.strerror)}
        begun = subprocess.Popen(
            ASK["command"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, close_fds=True
        )
        said = begun.communicate()[0].decode("utf-8", "replace").strip()
        after = state()
        if begun.returncode != 0 and after["phase"] in ("lost", "absent"):
            shutil.rmtree(ASK["folder"], ignore_errors=True)
            return {"phase": "refused", "error": said or "systemd-run ended with code %d" % begun.returncode}
        if after["phase"] == "lost":  # so short-lived that the unit is gone before the status file was looked at
            after = state()
        return dict(after, adopted=False)


def has_ended() -> bool:
    """True when the job's end is on record, or neither its process nor its unit is there any more."""
    status = read_json("status.json")
    if status is None:
        return shown(ASK["unit"])[0] not in LIVE
    return status.get("state") == "ended" or not runs(status)


def is_last(line: bytes, mark: bytes) -> bool:
    """True for the journal entry that run.py prints after everything else of the job."""
    try:
        return mark in line and bool(json.loads(line.decode("utf-8", "replace"))["MESSAGE"].startswith(mark.decode()))
    except (ValueError, KeyError, AttributeError):
        return False


def relay(handle: int, mark: bytes) -> None:
    """Pass the journal on until the job's last line has passed, or the job has ended and the journal stays quiet.

    Looks at the status file every quarter second, which costs no fork; there is no event for a process of another login.
    """
    held = b""
    quiet_since: Optional[float] = None
    while True:
        ready = select.select([0, handle], [], [], 0.25)[0]
        if 0 in ready and not os.read(0, 4096):
            return
        if handle in ready:
            piece = os.read(handle, 65536)
            if not piece:
                return
            quiet_since = None
            whole, newline, rest = (held + piece).rpartition(b"\n")
            held = rest
            sys.stdout.buffer.write(whole + newline)
            sys.stdout.buffer.flush()
            if any(is_last(line, mark) for line in whole.split(b"\n")):
                return
        elif has_ended():
            quiet_since = quiet_since or time.monotonic()
            if time.monotonic() - quiet_since > 2.0:
                return
        else:
            quiet_since = None


def follow() -> Dict[str, Any]:
    invocation = state().get("invocation", "")
    if invocation:
        call = ASK["journal"] + (["--after-cursor=" + ASK["cursor"]] if ASK["cursor"] else [])
        call += ["_SYSTEMD_INVOCATION_ID=" + invocation, "+", "INVOCATION_ID=" + invocation]
        journal = subprocess.Popen(call, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        try:
            assert journal.stdout is not None
            relay(journal.stdout.fileno(), ("relaunch: job %s ended with " % ASK["name"]).encode())
        finally:
            journal.kill()
            journal.wait()
    return state()


def main() -> None:
    answer = {"start": start, "state": state, "follow": follow}[ASK["op"]]()
    print(json.dumps({"relaunch_job": answer}))


main()
