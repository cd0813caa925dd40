"""Runs on the node: arms and disarms the dead man's switch, and is the switch. Stdlib only, Python 3.6-safe.

Asked by the console with ASK: {"op": "arm", "folder", "plan", "program": this very source, "seconds"} or {"op": "disarm",
"folder"}. Answers {"armed"} or {"disarmed"}: true, {"acting": true} while the switch is at work, {"error": text}.

As `restore.py FOLDER` it is what the timer starts: it waits until the heartbeat file is `seconds` old, stops the service
that was being deployed, puts the unit texts back, starts what served before and waits until it answers. FOLDER/plan.json
says what; FOLDER/record.json what it did. A plan that is taken away ends it, until it has begun to act.
"""

import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Optional

from console.node.agent.audit import append
from console.node.agent.processes import ROOT, start_ticks

ASK: Dict[str, Any] = globals().get("ASK", {})
UNIT = "relaunch-deadman"
IDLE_MIB = 1024
DRAIN, HEALTH, TRIES = 120.0, 3600.0, 3


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id") as source:
        return source.read().strip()


def load(path: str) -> Optional[Dict[str, Any]]:
    try:
        with open(path, encoding="utf-8") as source:
            found = json.load(source)
        return found if isinstance(found, dict) else None
    except (OSError, ValueError):
        return None


def put(path: str, text: str, mode: int = 0o600) -> None:
    fresh = path + ".new"
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w", encoding="utf-8") as target:
        target.write(text)
        target.flush()
        os.fsync(target.fileno())
    os.rename(fresh, path)


def drop(*paths: str) -> None:
    for path in paths:
        try:
            os.unlink(path)
        except OSError:
            pass


def systemctl(*words: str) -> str:
    """What systemctl complained of; empty when it was content."""
    done = subprocess.Popen(
        ("systemctl", *words), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    said = done.communicate()[0].decode("utf-8", "replace").strip()
    return said or "code %d" % done.returncode if done.returncode else ""


def active(unit: str) -> str:
    call = ("systemctl", "show", "-p", "ActiveState", unit)
    out = subprocess.Popen(call, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE).communicate()[0]
    return out.decode("utf-8", "replace").strip().partition("=")[2]


@contextmanager
def guard(folder: str) -> Iterator[None]:
    """One at a time: arming, disarming, and the decision to act."""
    handle = os.open(os.path.join(folder, "guard"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def acting(folder: str) -> bool:
    """The switch is at work: its record says so and its very process lives."""
    record = load(folder + "/record.json") or {}
    return (
        record.get("state") == "acting"
        and record.get("boot") == boot_id()
        and start_ticks(int(record["pid"])) == record.get("ticks")
    )


# ------------------------------------------------------------------------------------------------- arm and disarm


def arm(folder: str, plan: Dict[str, Any], program: str, seconds: int) -> Dict[str, Any]:
    os.makedirs(folder, mode=0o700, exist_ok=True)
    with guard(folder):
        if acting(folder):
            return {"acting": True}
        rest()
        drop(folder + "/record.json")
        put(folder + "/restore.py", program)
        put(folder + "/heartbeat", "")
        put(
            folder + "/plan.json",
            json.dumps(dict({"since": time.time()}, boot=boot_id(), armed=time.time(), seconds=seconds, **plan)),
        )
        if seconds > 0:
            said = timer(folder, seconds)
            if said:
                drop(folder + "/plan.json", folder + "/heartbeat")
                return {"error": said}
    return {"armed": True}


def timer(folder: str, seconds: int) -> str:
    call = [
        "systemd-run", "--unit=" + UNIT, "--collect", "--quiet", "--on-active=%d" % seconds,
        "--timer-property=AccuracySec=1s", "--description=Relaunch: back to what served, unless a console confirms",
        "--property=Type=exec", "--", sys.executable or "python3", "-I", folder + "/restore.py", folder,
    ]  # fmt: skip
    done = subprocess.Popen(call, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    said = done.communicate()[0].decode("utf-8", "replace").strip()
    return said or "systemd-run ended with code %d" % done.returncode if done.returncode else ""


def rest() -> None:
    """Timer and waiting switch end; that there was none is no matter."""
    systemctl("stop", UNIT + ".timer")
    systemctl("stop", UNIT + ".service")
    systemctl("reset-failed", UNIT + ".service")


def disarm(folder: str) -> Dict[str, Any]:
    if not os.path.isdir(folder):
        return {"disarmed": True}
    with guard(folder):
        if acting(folder):
            return {"acting": True}
        rest()
        drop(folder + "/plan.json", folder + "/heartbeat")
    return {"disarmed": True}


# ----------------------------------------------------------------------------------------------------- the switch


def wait_until_late(folder: str) -> bool:
    """True when the heartbeat has been still for as long as the plan allows; False when the plan is gone.

    Looks at a file's time: nobody tells that a file was not touched. The first look trusts the clock, later ones count
    by the monotonic clock, so that a clock that jumps fires nothing.
    """
    seen, since, limit = None, 0.0, 0.0
    while True:
        plan = load(folder + "/plan.json")
        if plan is None:
            return False
        seconds = float(plan["seconds"])
        try:
            beat = os.stat(folder + "/heartbeat").st_mtime
        except OSError:
            beat = plan["armed"]
        if beat != seen:
            age = min(max(time.time() - beat, 0.0), seconds) if seen is None else 0.0
            seen, since, limit = beat, time.monotonic(), seconds - age
        if time.monotonic() - since >= limit:
            return True
        time.sleep(min(2.0, max(0.05, limit - (time.monotonic() - since))))


def fire(folder: str) -> int:
    while wait_until_late(folder):
        with guard(folder):
            plan = load(folder + "/plan.json")
            if plan is None:
                return 0
            if time.time() - os.stat(folder + "/heartbeat").st_mtime < min(1.0, plan["seconds"] / 2.0):
                continue  # the console came back in this very moment
            record = begin(folder, plan)
        told = restore(plan, record, folder)
        finish(folder, plan, record, told)
        return 0 if record["state"] == "restored" else 1
    return 0


def begin(folder: str, plan: Dict[str, Any]) -> Dict[str, Any]:
    record = {
        "state": "acting", "run": plan["run"], "token": plan["token"], "boot": boot_id(), "pid": os.getpid(),
        "ticks": start_ticks(os.getpid()), "began": time.time(), "text": "going back to what served before",
    }  # fmt: skip
    put(folder + "/record.json", json.dumps(record))
    write(plan, "no console confirmed within %d s: going back to what served before" % plan["seconds"], "begun")
    return record


def write(plan: Dict[str, Any], action: str, result: str) -> None:
    line = {"operator": "relaunch-deadman", "run": plan["run"], "step": "deadman", "action": action, "result": result}
    append(plan["audit"], line)


def act(plan: Dict[str, Any], *words: str) -> str:
    said = systemctl(*words)
    write(plan, "systemctl " + " ".join(words), said[:200] or "done")
    return said


def restore(plan: Dict[str, Any], record: Dict[str, Any], folder: str) -> str:
    """Bring back what served; what came of it in words, and `record["state"]` with it."""
    act(plan, "stop", plan["ours"])
    for path, text in sorted(plan["texts"].items()):
        if text is None:
            drop(path)
        else:
            put(path, text, 0o644)
        write(plan, ("remove " if text is None else "write ") + path, "done")
    act(plan, "daemon-reload")
    until_idle()
    told = []
    record["state"] = "restored"
    for target in plan["bring_back"]:
        unit, port = target["unit"], int(target["port"])
        why = back_up(plan, unit, port)
        if why:
            record["state"] = "failed"
        told.append("%s %s" % (unit, why or "serves again on port %d" % port))
    return "; ".join(told)


def back_up(plan: Dict[str, Any], unit: str, port: int) -> str:
    """Start a unit until it answers; why it does not, or nothing."""
    deadline = time.monotonic() + HEALTH
    said = ""
    for _ in range(TRIES):
        systemctl("reset-failed", unit)
        said = act(plan, "start", unit)
        while time.monotonic() < deadline:
            if healthy(port):
                return ""
            if active(unit) not in ("active", "activating", "reloading"):
                break
            time.sleep(0.5)  # health tells nobody when it comes
        until_idle()
    return "does not serve: %s" % (said or "it is %s and /health does not answer 200" % active(unit))


def healthy(port: int) -> bool:
    try:
        if ROOT:
            link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            link.settimeout(5)
            link.connect(os.path.realpath("%s/net/%d.sock" % (ROOT, port)))
        else:
            link = socket.create_connection(("127.0.0.1", port), 5)
        try:
            link.sendall(b"GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n")
            return b" 200 " in link.recv(64)
        finally:
            link.close()
    except OSError:
        return False


def until_idle() -> None:
    """GPU memory comes back after the process is gone, and a start that does not wait for it fails."""
    program = shutil.which("nvidia-smi")
    limit = time.monotonic() + DRAIN
    while program and time.monotonic() < limit:
        call = (program, "--query-gpu=memory.used", "--format=csv,noheader,nounits")
        out = subprocess.Popen(call, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        used: List[str] = out.communicate()[0].decode("utf-8", "replace").split()
        if not any(word.isdigit() and int(word) > IDLE_MIB for word in used):
            return
        time.sleep(1.0)


def finish(folder: str, plan: Dict[str, Any], record: Dict[str, Any], told: str) -> None:
    """The record last: who sees its end finds everything else done."""
    write(plan, "dead man's switch: " + told, record["state"])
    drop(folder + "/plan.json", folder + "/heartbeat")
    give_lock_back(plan)
    record.update(text=told, ended=time.time(), downtime=time.time() - plan["since"])
    put(folder + "/record.json", json.dumps(record))


def give_lock_back(plan: Dict[str, Any]) -> None:
    """The run that held it is over; anybody else's lock is left alone."""
    handle = os.open(plan["lock"] + ".guard", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        if (load(plan["lock"]) or {}).get("token") == plan["lock_token"]:
            drop(plan["lock"])
    finally:
        os.close(handle)


def main() -> None:
    if not ASK:
        sys.exit(fire(sys.argv[1]))
    if ASK["op"] == "arm":
        answer = arm(ASK["folder"], ASK["plan"], ASK["program"], int(ASK["seconds"]))
    else:
        answer = disarm(ASK["folder"])
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
