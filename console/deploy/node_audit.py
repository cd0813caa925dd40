"""Runs on the node around one mutating command: the command, and then the line about it in the audit file.

argv: the audit file, the line as JSON, the command. The line gets the command's end as `result` and its `seconds`. It is
written by the node itself, so that neither a lost link nor a killed console takes it away; a command that lasts longer
than SLOW is written down as begun too, for the case that the power goes first. Stdin, both outputs and the exit status are
the command's own. Stdlib only, Python 3.6-safe.
"""

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any, List

from console.node.agent.audit import append

SLOW = 1.0


def main(words: List[str]) -> int:
    path, about, command = words[0], json.loads(words[1]), words[2:]
    began = time.monotonic()
    written = threading.Lock()

    def write(result: str) -> None:
        with written:
            append(path, dict(about, result=result, seconds=round(time.monotonic() - began, 3)))

    try:
        child = subprocess.Popen(command, close_fds=False)
    except OSError as failure:
        sys.stderr.write("%s: %s\n" % (command[0], os.strerror(failure.errno or errno.ENOENT)))
        write("not started: %s" % os.strerror(failure.errno or errno.ENOENT))
        return 127 if failure.errno in (errno.ENOENT, errno.ENOTDIR) else 126

    def passed_on(number: int, frame: Any) -> None:
        child.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, passed_on)
    timer = threading.Timer(SLOW, write, ("begun",))
    timer.daemon = True
    timer.start()
    code = child.wait()
    timer.cancel()
    write("done" if code == 0 else "code %d" % code if code > 0 else "signal %d" % -code)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
