"""Runs on the node: arms and disarms the dead man's switch, and is the switch. Stdlib only, Python 3.6-safe.

Asked by the console with ASK: {"op": "arm", "folder", "units": folder of unit files, "plan", "program": this very source,
"seconds"} or {"op": "disarm", "folder", "units"}. Answers {"armed"} or {"disarmed"}: true, {"acting": true} while the
switch is at work, {"error": text}.

The switch is a service whose file stands among the node's units. A timer starts it in this boot; it is enabled, so that
the next boot starts it too, and then it acts at once when the console has been silent for too long by then.

As `restore.py FOLDER` it is what that service runs: it waits until the heartbeat file is `seconds` old, stops the service
that was being deployed, puts the unit texts back, starts what served before and waits until it answers. FOLDER/plan.json
says what; FOLDER/record.json what it did. A plan that is taken away ends it, until it has begun to act.
"""

import fcntl
import glob
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
SERVICE, TIMER = UNIT + ".service", UNIT + ".timer"
BOOT = "multi-user.target"
# a switch that something kills begins again; one that could not bring back what served has told so and stays down
SERVICE_TEXT = """\
[Unit]
Description=Relaunch: back to what served, unless a console confirms
ConditionPathExists=%(plan)s
CollectMode=inactive-or-failed

[Service]
Type=exec
ExecStart=%(command)s
Restart=on-abnormal
RestartSec=2

[Install]
WantedBy=%(boot)s
"""
IDLE_MIB = 1024
ROOM = 64 << 10  # bytes that the switch keeps for itself, so that a disk that is full when it acts holds its words
DRAIN, HEALTH, TRIES = 120.0, 3600.0, 3
UP = ("active", "activating", "reloading")


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
    try:
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w", encoding="utf-8") as target:
            target.write(text)
            target.flush()
            os.fsync(target.fileno())
        os.rename(fresh, path)
    except OSError:
        drop(fresh)
        raise
    settle(os.path.dirname(path))


def tried(path: str, text: str, mode: int = 0o600) -> str:
    """`put`, by a switch that goes on whatever the disk says; what it said, or nothing."""
    try:
        put(path, text, mode)
    except OSError as failure:
        return failure.strerror or "not written"
    return ""


def settle(folder: str) -> None:
    """What was made or removed in a folder outlives a power cut from here on."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        pass  # some file systems cannot sync a folder
    finally:
        os.close(handle)


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


def shown(unit: str, name: str) -> str:
    """A property of a unit as systemd has it."""
    call = ("systemctl", "show", "-p", name, unit)
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


def arm(folder: str, units: str, plan: Dict[str, Any], program: str, seconds: int) -> Dict[str, Any]:
    os.makedirs(folder, mode=0o700, exist_ok=True)
    with guard(folder):
        if acting(folder):
            return {"acting": True}
        rest()
        drop(folder + "/record.json")
        armed = dict({"since": time.time()}, boot=boot_id(), armed=time.time(), seconds=seconds, units=units, **plan)
        said = prepare(folder, json.dumps(armed), program)
        if not said and seconds > 0:
            said = wait_for_it(folder, units, seconds)
        if said or seconds <= 0:
            forget(units)
        if said:
            drop(*left_over(folder))
            return {"error": said}
    return {"armed": True}


def prepare(folder: str, plan: str, program: str) -> str:
    """What the switch needs of its own on the disk, the plan last; what the disk said, or nothing."""
    for name, text in (("room", "\0" * ROOM), ("restore.py", program), ("heartbeat", ""), ("plan.json", plan)):
        said = tried("%s/%s" % (folder, name), text)
        if said:
            return "%s: %s" % (folder, said)
    return ""


def wait_for_it(folder: str, units: str, seconds: int) -> str:
    """Have systemd wait, in this boot and over the next; what it complained of, or what it does not say that it does."""
    command = [sys.executable or "python3", "-I", folder + "/restore.py", folder]
    told = {"plan": (folder + "/plan.json").replace("%", "%%"), "command": " ".join(map(quoted, command)), "boot": BOOT}
    try:
        put(units + "/" + SERVICE, SERVICE_TEXT % told, 0o644)
    except OSError as failure:
        return "%s: %s" % (units, failure.strerror)
    said = systemctl("enable", SERVICE)  # which has systemd read it, too
    settle("%s/%s.wants" % (units, BOOT))
    return said or timer(seconds) or not_waiting()


def quoted(word: str) -> str:
    """A word of a unit file's command line."""
    for special, escaped in (("\\", "\\\\"), ('"', '\\"'), ("%", "%%"), ("$", "$$")):
        word = word.replace(special, escaped)
    return '"%s"' % word


def timer(seconds: int) -> str:
    call = [
        "systemd-run", "--unit=" + SERVICE, "--quiet", "--on-active=%d" % seconds, "--timer-property=AccuracySec=1s",
        "--description=Relaunch: the time until it goes back to what served",
    ]  # fmt: skip
    done = subprocess.Popen(call, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    said = done.communicate()[0].decode("utf-8", "replace").strip()
    return said or "systemd-run ended with code %d" % done.returncode if done.returncode else ""


def not_waiting() -> str:
    """What systemd itself says is missing of an armed switch; empty when nothing is."""
    call = ("systemctl", "show", "-p", "Id,ActiveState,UnitFileState", TIMER, SERVICE)
    out = subprocess.Popen(call, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE).communicate()[0].decode()
    blocks = [dict(line.partition("=")[::2] for line in block.splitlines()) for block in out.split("\n\n")]
    states = {block.get("Id"): block for block in blocks}
    waits, boots = states.get(TIMER, {}).get("ActiveState"), states.get(SERVICE, {}).get("UnitFileState")
    if waits != "active":
        return "%s is %s" % (TIMER, waits or "unknown")
    return "" if boots == "enabled" else "%s is %s, and a restart would lose it" % (SERVICE, boots or "unknown")


def rest() -> None:
    """Timer and waiting switch end; that there was none is no matter."""
    systemctl("stop", TIMER, SERVICE)


def forget(units: str) -> None:
    """No boot starts the switch any more, and systemd knows nothing of it. Works for the switch itself while it runs."""
    links = glob.glob(os.path.join(glob.escape(units), "*.wants", SERVICE))
    if links or os.path.exists(units + "/" + SERVICE):
        drop(*links, units + "/" + SERVICE)
        for folder in {os.path.dirname(link) for link in links} | {units}:
            settle(folder)
        systemctl("daemon-reload")


def left_over(folder: str) -> List[str]:
    """What an armed switch keeps beside its record and its guard; the plan first, since without it nothing acts."""
    return [folder + name for name in ("/plan.json", "/heartbeat", "/restore.py", "/room")]


def disarm(folder: str, units: str) -> Dict[str, Any]:
    if not os.path.isdir(folder):
        return {"disarmed": True}
    with guard(folder):
        if acting(folder):
            return {"acting": True}
        rest()
        drop(*left_over(folder))
        settle(folder)
        forget(units)
    return {"disarmed": True}


# ----------------------------------------------------------------------------------------------------- the switch


def beat_of(folder: str, plan: Dict[str, Any]) -> float:
    """When a console was last heard."""
    try:
        return os.stat(folder + "/heartbeat").st_mtime
    except OSError:
        return float(plan["armed"])


def wait_until_late(folder: str) -> Optional[float]:
    """The last heartbeat, when it has been still for as long as the plan allows; None when the plan is gone.

    Looks at a file's time: nobody tells that a file was not touched. The first look, which may be that of another boot,
    trusts the clock as far as the plan's own time; later ones count by the monotonic clock, so that a clock that jumps
    fires nothing.
    """
    seen, since, limit = None, 0.0, 0.0
    while True:
        plan = load(folder + "/plan.json")
        if plan is None:
            return None
        seconds = float(plan["seconds"])
        beat = beat_of(folder, plan)
        if beat != seen:
            age = min(max(time.time() - beat, 0.0), seconds) if seen is None else 0.0
            seen, since, limit = beat, time.monotonic(), seconds - age
        if time.monotonic() - since >= limit:
            return beat
        time.sleep(min(2.0, max(0.05, limit - (time.monotonic() - since))))


def fire(folder: str) -> int:
    while True:
        heard = wait_until_late(folder)
        if heard is None:
            return 0
        with guard(folder):
            plan = load(folder + "/plan.json")
            if plan is None:
                return 0
            if beat_of(folder, plan) != heard:
                continue  # the console came back in this very moment
            record = begin(folder, plan)
        told = restore(plan, record, folder)
        finish(folder, plan, record, told)
        return 0 if record["state"] == "restored" else 1


def begin(folder: str, plan: Dict[str, Any]) -> Dict[str, Any]:
    record = {
        "state": "acting", "run": plan["run"], "token": plan["token"], "boot": boot_id(), "pid": os.getpid(),
        "ticks": start_ticks(os.getpid()), "began": time.time(), "text": "going back to what served before",
    }  # fmt: skip
    drop(folder + "/room")
    tried(folder + "/record.json", json.dumps(record))
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
            write(plan, "remove " + path, "done")
        else:
            write(plan, "write " + path, tried(path, text, 0o644) or "done")
    act(plan, "daemon-reload")
    if not any(shown(target["unit"], "ActiveState") in UP for target in plan["bring_back"]):
        until_idle()  # else what served was started by the boot already, and the memory is its own
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
            if shown(unit, "ActiveState") not in UP:
                break
            time.sleep(0.5)  # health tells nobody when it comes
        until_idle()
    return "does not serve: %s" % (said or "it is %s and /health does not answer 200" % shown(unit, "ActiveState"))


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
    drop(*left_over(folder))
    settle(folder)
    systemctl("stop", TIMER)
    forget(plan["units"])
    give_lock_back(plan)
    record.update(text=told, ended=time.time(), downtime=max(0.0, time.time() - plan["since"]))
    tried(folder + "/record.json", json.dumps(record))


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
        answer = arm(ASK["folder"], ASK["units"], ASK["plan"], ASK["program"], int(ASK["seconds"]))
    else:
        answer = disarm(ASK["folder"], ASK["units"])
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
