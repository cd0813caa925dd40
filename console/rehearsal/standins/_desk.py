"""How a stand-in program asks the practice init: one request over its control socket, answers as they come.

Kept small and free of heavy imports: it runs once for each `systemctl`. The wire is told in
`console/rehearsal/init/reply.py`.
"""

import _socket
import array
import os
import sys
from collections.abc import Sequence


def root() -> str:
    """ROOT of this node."""
    return os.environ.get("RELAUNCH_PRACTICE_ROOT", "/var/lib/relaunch-practice")


def connect(program: str, argv: Sequence[str]) -> _socket.socket:
    """A connected socket on which the request has been sent; OSError when no init is there."""
    sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    sock.connect(os.path.realpath(root() + "/run/systemd/private"))
    payload = b"\0".join(os.fsencode(word) for word in [program, os.getcwd(), *argv])
    data = b"%d\n" % len(payload) + payload
    fds = array.array("i", [0, 1, 2])
    sent = sock.sendmsg([data], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, fds.tobytes())])
    while sent < len(data):
        sent += sock.send(data[sent:])
    return sock


def call(program: str, argv: Sequence[str]) -> int:
    """Print what the init answers and return the exit code it gives."""
    try:
        sock = connect(program, argv)
    except OSError:
        sys.stderr.write(
            "System has not been booted with systemd as init system (PID 1). Can't operate.\n"
            "Failed to connect to bus: Host is down\n"
        )
        return 1
    data = b""
    while True:
        head, newline, rest = data.partition(b"\n")
        if newline and len(rest) >= int(head[1:]):
            length = int(head[1:])
            body, data = rest[:length], rest[length:]
            if head[:1] == b"x":
                return int(body)
            write(1 if head[:1] == b"o" else 2, body)
            continue
        more = sock.recv(65536)
        if not more:
            sys.stderr.write("Connection to the practice init was closed.\n")
            return 1
        data += more


def write(fd: int, data: bytes) -> None:
    """All of it."""
    while data:
        data = data[os.write(fd, data) :]
