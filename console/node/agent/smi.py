"""Runs on the node: nvidia-smi where there is no NVML, unparsed; one long-lived process. Stdlib only, Python 3.6-safe."""

import os
import select
import shutil
import signal
import subprocess
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from console.node.agent.processes import Processes

RETRY = 5.0
"""Seconds until a trouble is looked at again."""

FIELDS = [
    "index", "uuid", "name", "pci.bus_id", "compute_cap", "memory.total", "memory.used", "memory.reserved",
    "utilization.gpu", "power.draw", "power.limit", "temperature.gpu", "ecc.errors.uncorrected.volatile.total",
    "mig.mode.current", "driver_version", "count",
]  # fmt: skip
APP_FIELDS = "gpu_uuid,pid,used_memory"


def smi(arguments: List[str]) -> Any:
    """nvidia-smi in a process group of its own, so that all of it can be killed."""
    program = shutil.which("nvidia-smi", path=os.environ.get("PATH", "") + ":/usr/bin:/usr/local/bin")
    if program is None:
        return None
    return subprocess.Popen(
        [program, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        start_new_session=True,
    )  # fmt: skip


def end(process: Any) -> None:
    """Kill the group and do not wait: a process that hangs in the driver cannot be reaped."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except OSError:
        pass
    process.poll()


def smi_once(arguments: List[str], limit: float = 20.0) -> Optional[Tuple[str, Optional[int]]]:
    """(text, exit code) of one call; code None when it gave no answer within `limit` seconds; None without nvidia-smi."""
    process = smi(arguments)
    if process is None:
        return None
    pieces: List[bytes] = []
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        if select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
            piece = os.read(process.stdout.fileno(), 65536)
            if not piece:
                return b"".join(pieces).decode("utf-8", "replace"), process.wait()
            pieces.append(piece)
    end(process)
    return b"".join(pieces).decode("utf-8", "replace"), None


def refused_field(said: str, fields: List[str]) -> Optional[str]:
    """The field that this nvidia-smi does not know, by its own words; None when that was not the trouble."""
    if "not a valid field" in said:
        for field in fields:
            if '"%s"' % field in said:
                return field
    return None


def app_lines(processes: Processes) -> Dict[str, Any]:
    """{"apps": text, "who": owners}: which process holds memory on which GPU."""
    answer = smi_once(["--query-compute-apps=" + APP_FIELDS, "--format=csv"])
    if answer is None or answer[1] != 0:
        return {"apps": None, "who": {}}
    pids: List[int] = []
    for line in answer[0].splitlines():
        parts = [part.strip() for part in line.split(",")]
        pids += [int(part) for part in parts[1:2] if part.isdigit()]
    return {"apps": answer[0], "who": processes.of(sorted(set(pids)))}


def smi_sample() -> List[Dict[str, Any]]:
    """One sample by two calls of nvidia-smi, at the same time: each takes a second where the driver is not kept loaded."""
    found: Dict[str, Any] = {}
    asking = threading.Thread(target=lambda: found.update(app_lines(Processes())))
    asking.daemon = True
    asking.start()
    fields = list(FIELDS)
    answer = smi_once(["--query-gpu=" + ",".join(fields), "--format=csv"])
    refused = refused_field(answer[0], fields) if answer is not None else None
    while refused is not None:
        fields.remove(refused)
        answer = smi_once(["--query-gpu=" + ",".join(fields), "--format=csv"])
        refused = refused_field(answer[0], fields) if answer is not None else None
    if answer is None:
        return [{"t": time.time(), "smi": None, "code": 127, "apps": None, "who": {}}]
    line: Dict[str, Any] = {"t": time.time(), "smi": answer[0], "code": answer[1]}
    asking.join()
    line.update(found if found and answer[1] == 0 else {"apps": None, "who": {}})
    return [line]


def without_ended(apps: Dict[str, Any], processes: Processes) -> Dict[str, Any]:
    """The list without processes that were seen and have ended since: nothing is theirs any more."""
    now = processes.of([int(pid) for pid in apps["who"]])
    ended = set(pid for pid in apps["who"] if now.get(pid) != apps["who"][pid])
    if not ended:
        return apps
    rows = [
        line
        for line in apps["apps"].splitlines()
        if not ended.intersection(part.strip() for part in line.split(",")[1:2])
    ]
    return {"apps": "\n".join(rows) + "\n", "who": now}


class Rounds:
    """Cuts the endless output of `nvidia-smi -lms` into rounds: a round ends where the GPU index does not go up."""

    def __init__(self, fields: List[str]) -> None:
        self.fields, self.last, self.header = fields, -1, ""
        self.rows: List[str] = []
        self.notes: List[str] = []

    def feed(self, line: str) -> Optional[str]:
        """The text of the round that this line has ended, or None."""
        parts = [part.strip() for part in line.split(",")]
        if parts[0] == self.fields[0]:
            self.header = line
            return None
        index = parts[self.fields.index("index")] if len(parts) >= len(self.fields) else ""
        if not index.isdigit():
            self.notes.append(line)
            return None
        done = self.take() if self.rows and int(index) <= self.last else None
        self.rows.append(line)
        self.last = int(index)
        count = parts[self.fields.index("count")] if "count" in self.fields else ""
        if count.isdigit() and len(self.rows) >= int(count):
            done = self.take()
        return done

    def take(self) -> str:
        out = "\n".join([*self.notes, self.header, *self.rows]) + "\n"
        self.rows, self.notes, self.last = [], [], -1
        return out


class SmiLoop:
    """One long-lived nvidia-smi, started again when it ends; processes by a short call every few seconds."""

    def __init__(self, interval: float, tell: Callable[[List[Dict[str, Any]]], None]) -> None:
        self.interval, self.tell, self.fields = interval, tell, list(FIELDS)
        self.processes = Processes()
        self.apps: Dict[str, Any] = {"apps": None, "who": {}}
        self.apps_due = 0.0

    def run(self) -> Tuple[str, int]:
        """Until nvidia-smi ends; returns its last words and its exit code."""
        arguments = ["--query-gpu=" + ",".join(self.fields), "--format=csv", "-lms", str(int(self.interval * 1000))]
        process = smi(arguments)
        if process is None:
            return "", 127
        rounds = Rounds(self.fields)
        loose: List[str] = []
        try:
            for raw in iter(process.stdout.readline, b""):
                line = raw.decode("utf-8", "replace").strip()
                loose = [*loose[-49:], line]
                done = rounds.feed(line)
                if done is not None:
                    loose = []
                    self.say(done)
            return "\n".join(loose), int(process.wait())
        finally:
            end(process)

    def say(self, out: str) -> None:
        began = time.monotonic()
        if began >= self.apps_due:
            self.apps = app_lines(self.processes)
            # a call costs up to seconds on a machine without persistence mode: at most a fiftieth of the time
            self.apps_due = began + max(5.0, 50 * (time.monotonic() - began))
        else:
            left = without_ended(self.apps, self.processes)
            if left is not self.apps:
                # who came instead is worth a call, though no more often than every second
                self.apps, self.apps_due = left, min(self.apps_due, began + 1.0)
        self.tell([dict({"t": time.time(), "smi": out, "code": 0}, **self.apps)])

    def forever(self) -> None:
        """Does not return."""
        while True:
            said, code = self.run()
            field = refused_field(said, self.fields)
            if field is not None:
                self.fields.remove(field)
                continue
            told = None if code == 127 and not said else said
            self.tell([{"t": time.time(), "smi": told, "code": code, "apps": None, "who": {}}])
            time.sleep(RETRY)  # a driver that is away gives no event when it comes back
