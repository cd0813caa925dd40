"""Runs on the node as the main process of a job's transient unit: starts the job, waits, records how it ended.

Called as `python3 -I run.py FOLDER`. Reads FOLDER/job.json, keeps FOLDER/status.json current by atomic replacement, deletes
the job's secret files when it ends, and says so in a last log line. Outlives SIGTERM long enough to record the end.
"""

import json
import os
import pwd
import signal
import subprocess
import sys
import time
from typing import Any, Dict, List, Optional


def start_ticks(pid: int) -> int:
    """Start time of a process in clock ticks since boot: with the pid its identity."""
    with open("/proc/%d/stat" % pid) as source:
        return int(source.read().rpartition(")")[2].split()[19])


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id") as source:
        return source.read().strip()


def record(folder: str, status: Dict[str, Any]) -> None:
    """Replace status.json as a whole; a reader sees the old one or the new one."""
    new = os.path.join(folder, ".status.json.new")
    with open(new, "w") as target:
        json.dump(status, target)
        target.flush()
        os.fsync(target.fileno())
    os.rename(new, os.path.join(folder, "status.json"))


def wait(child: Any, stops: List[bool]) -> int:
    """The child's return code. systemd signals the whole cgroup; a child that it missed is told a second later."""
    told = False
    while True:
        try:
            return int(child.wait(timeout=1.0))
        except subprocess.TimeoutExpired:
            if stops and not told:
                told = True
                child.terminate()


def main(folder: str) -> int:
    with open(os.path.join(folder, "job.json")) as source:
        job = json.load(source)
    stops: List[bool] = []
    for told in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(told, lambda *_: stops.append(True))
    environment = dict(os.environ, PYTHONUNBUFFERED="1")
    environment.setdefault("HOME", pwd.getpwuid(os.getuid()).pw_dir)
    environment.update(job["environment"])
    status: Dict[str, Any] = {
        "state": "running", "pid": os.getpid(), "ticks": start_ticks(os.getpid()), "boot": boot_id(),
        "invocation": os.environ.get("INVOCATION_ID", ""), "started": time.time(),
    }  # fmt: skip
    record(folder, status)
    code: Optional[int] = None
    number: Optional[int] = None
    error = ""
    try:
        child = subprocess.Popen(job["argv"], cwd=job["cwd"] or folder, env=environment, stdin=subprocess.DEVNULL)
        returned = wait(child, stops)
        code, number = (returned, None) if returned >= 0 else (None, -returned)
    except OSError as failure:
        code, error = 127, "%s: %s" % (job["argv"][0], failure.strerror)
        sys.stderr.write("relaunch: cannot start %s\n" % error)
        sys.stderr.flush()
    finally:
        for name in job["secrets"]:
            try:
                os.unlink(os.path.join(folder, name))
            except OSError:
                pass
    status.update(state="ended", code=code, signal=number, error=error, stopped=bool(stops), ended=time.time())
    record(folder, status)
    end = "code %s" % code if number is None else "signal %s" % number
    sys.stdout.write("relaunch: job %s ended with %s\n" % (job["name"], end))
    sys.stdout.flush()
    return 128 + number if number is not None else code or 0


sys.exit(main(sys.argv[1]))
