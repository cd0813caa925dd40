"""The telemetry agent: runs on the node, attached, and prints one JSON line per sample. Stdlib only, Python 3.6-safe.

Reads the GPUs through NVML; where there is no NVML library, through one long-lived `nvidia-smi`. Never one fork per
sample. Ends when its stdin closes. ASK: interval (seconds), venvs, bundle (base64 of zlib of pynvml's source, or empty).

    {"head": {...}}           what changes rarely: driver, per GPU name, uuid, total, MIG, ECC, processes' owners, findings
    {"t": time, "g": [...]}   one sample: per GPU [used, reserved, utilisation, watts, celsius, [[pid, bytes], ...]]
    {"t": time, "smi": text}  one round of nvidia-smi, unparsed, with "code", "apps" (its processes, unparsed) and "who"
    {"t": time, "wedged": 1}  the driver has not answered for ten seconds and more
"""

import json
import os
import select
import signal
import sys
import threading
import time
from typing import Any, Dict, List, Sequence

from console.node.agent.nvml import Gone, Nvml, broken, open_nvml
from console.node.agent.processes import read
from console.node.agent.smi import RETRY, SmiLoop

ASK: Dict[str, Any] = globals().get("ASK", {})
WEDGED = 10.0


class Watch:
    """Samples in a thread of its own, so that a driver that hangs keeps neither the end of stdin nor the word of it."""

    def __init__(self, interval: float, venvs: Sequence[str], bundle: str) -> None:
        self.interval, self.venvs, self.bundle = interval, venvs, bundle
        self.lock, self.told_at, self.wedged = threading.Lock(), time.monotonic(), False

    def tell(self, lines: List[Dict[str, Any]]) -> None:
        with self.lock:
            for line in lines:
                sys.stdout.write(json.dumps(line, separators=(",", ":")) + "\n")
            sys.stdout.flush()
            self.told_at, self.wedged = time.monotonic(), False

    def sample_forever(self) -> None:
        try:
            while True:
                session, trouble = open_nvml(self.venvs, self.bundle)
                if session is None and trouble is None:
                    SmiLoop(self.interval, self.tell).forever()
                if session is None:
                    self.tell(trouble or [])
                    time.sleep(RETRY)  # as above: no event tells that a driver was loaded
                    continue
                try:
                    self.watch(session)
                except Gone as failure:
                    self.tell(broken(session.source, str(failure)))
                    session.close()
                    time.sleep(RETRY)  # as above
        except BrokenPipeError:
            os._exit(0)
        except BaseException as failure:
            sys.stderr.write("telemetry: %s: %s\n" % (type(failure).__name__, failure))
            sys.stderr.flush()
            os._exit(1)

    def watch(self, session: Nvml) -> None:
        """Samples at an even pace until the driver is gone."""
        due = time.monotonic()
        while True:
            self.tell(session.sample())
            due = max(due + self.interval, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))

    def main(self) -> None:
        sampler = threading.Thread(target=self.sample_forever)
        sampler.daemon = True
        sampler.start()
        while True:
            if select.select([0], [], [], 1.0)[0] and not os.read(0, 4096):
                self.leave()
            silent = time.monotonic() - self.told_at
            if silent > WEDGED + 2 * max(self.interval, RETRY) and not self.wedged:
                self.tell([{"t": time.time(), "wedged": 1}])
                self.wedged = True

    def leave(self) -> None:
        """At once, and with the nvidia-smi that was started; a hung thread does not hold it up."""
        for pid in children():
            try:
                os.killpg(pid, signal.SIGKILL)
            except OSError:
                pass
        os._exit(0)


def children() -> List[int]:
    """Pids of our own direct children."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            fields = read("/proc/%s/stat" % name).rpartition(")")[2].split()
            if len(fields) > 1 and fields[1] == str(os.getpid()):
                found.append(int(name))
    return found


if __name__ == "__main__":
    Watch(float(ASK.get("interval", 1.0)), ASK.get("venvs", []), ASK.get("bundle", "")).main()
