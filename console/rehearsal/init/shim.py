"""The process that holds one unit's processes together: `python -I -S shim.py FD`, one JSON object a line on FD.

It is a subreaper, so that whatever a unit forks, and whatever loses its parent, stays below it, as it would stay in a
cgroup. It says `empty` when nothing is left, and kills all of it when the other end of FD is closed.

In:  {"id": 1, "argv": […], "env": {…}, "cwd": "/", "limits": [[resource, soft, hard], …], "umask": 18,
      "fail": null or ["USER", 3]: fail at that step with that errno instead of executing}
Out: {"id": 1, "pid": 7}, or {"id": 1, "pid": 7, "step": "EXEC", "errno": 2} when it could not be executed;
     {"gone": 7, "code": 1} for each ended process (negative for a signal, "core": true with a core), {"empty": true}.
"""

import ctypes
import json
import os
import resource
import select
import signal
import sys
from typing import Any

STATUS = {"EXEC": 203, "CHDIR": 200, "LIMITS": 205, "USER": 217}


def spawn(request: dict[str, Any]) -> tuple[int, str | None, int]:
    """Fork and execute; the pid, the step that failed or None, and its errno."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        step, number = prepare(request)
        os.write(write_end, f"{step} {number}".encode())
        os._exit(STATUS[step])
    os.close(write_end)
    said = os.read(read_end, 100).decode()
    os.close(read_end)
    failed, _, errno = said.partition(" ")
    return pid, failed or None, int(errno or 0)


def prepare(request: dict[str, Any]) -> tuple[str, int]:
    """Become the program; comes back only with the step that failed and its errno."""
    step = "LIMITS"
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.umask(request["umask"])
        for what, soft, hard in request["limits"]:
            try:
                resource.setrlimit(what, (soft, hard))
            except (ValueError, OSError):
                pass  # a sandbox may forbid it; systemd would clip it too
        if request.get("fail"):
            return request["fail"][0], request["fail"][1]
        step = "CHDIR"
        os.chdir(request["cwd"])
        step = "EXEC"
        os.execve(request["path"], request["argv"], dict(request["env"], SYSTEMD_EXEC_PID=str(os.getpid())))  # noqa: S606
    except OSError as error:
        return step, error.errno or 0


class Shim:
    """One end of the line to the init, and the children."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.rest = b""
        self.wake, wake = os.pipe()
        for end in (self.wake, wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the init tells it to end by closing the line
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def say(self, **words: object) -> None:
        data = json.dumps(words).encode() + b"\n"
        while data:
            data = data[os.write(self.fd, data) :]

    def reap(self) -> None:
        """Tell of every process that has ended."""
        gone = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                if gone:
                    self.say(empty=True)
                return
            if pid == 0:
                return
            gone = True
            code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
            self.say(gone=pid, code=code, core=os.WIFSIGNALED(status) and os.WCOREDUMP(status))

    def serve(self) -> None:
        """Until the init is gone."""
        while True:
            ready, _, _ = select.select([self.fd, self.wake], [], [])
            if self.wake in ready:
                os.read(self.wake, 4096)
            if self.fd in ready:
                data = os.read(self.fd, 1 << 16)
                if not data:
                    return
                *lines, self.rest = (self.rest + data).split(b"\n")
                for line in lines:
                    request = json.loads(line.decode())
                    pid, step, number = spawn(request)
                    self.say(id=request["id"], pid=pid, step=step, errno=number)
            self.reap()


def children_of(own: int) -> set[int]:
    """Processes whose chain of parents leads here."""
    parent = {}
    for entry in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue
            if fields[0] not in (b"Z", b"X"):
                parent[int(entry)] = int(fields[1])
    below = {own}
    grown = True
    while grown:
        grown = False
        for pid, above in parent.items():
            if above in below and pid not in below:
                below.add(pid)
                grown = True
    return below - {own}


def end_all() -> None:
    """SIGKILL whatever is below, until nothing is."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    killed: set[int] = set()
    while True:
        fresh = children_of(os.getpid()) - killed
        for pid in fresh:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        killed |= fresh
        if not fresh:
            break
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def main() -> None:
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    try:
        Shim(int(sys.argv[1])).serve()
    except OSError:
        pass  # the init is gone
    end_all()


if __name__ == "__main__":
    main()
