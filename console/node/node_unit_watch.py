"""Runs on the node, attached: one JSON object of a unit's properties now, and one at every change.

Wakes on D-Bus signals of systemd about the unit and then asks `systemctl show` once. Where there is no system bus it
looks at the unit's cgroup and main process without forking four times a second, and asks systemctl when they change and
once a second besides, since a unit without a process changes silently. Ends when its stdin closes. ASK: unit, properties.
"""

import json
import os
import select
import socket
import struct
import subprocess
import sys
import time
from typing import Any, Dict, List, Optional, Sequence, Tuple

ASK: Dict[str, Any] = globals().get("ASK", {})
BUS = "/run/dbus/system_bus_socket"


def bus_path(unit: str) -> str:
    """D-Bus object path of a unit: everything but letters and digits as _xx."""
    out = []
    for number, byte in enumerate(unit.encode()):
        char = chr(byte)
        plain = byte < 128 and char.isalnum() and not (number == 0 and char.isdigit())
        out.append(char if plain else "_%02x" % byte)
    return "/org/freedesktop/systemd1/unit/" + "".join(out)


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<I", len(data)) + data + b"\0"


def _padded(data: bytes, to: int) -> bytes:
    return data + b"\0" * (-len(data) % to)


def call(serial: int, path: str, interface: str, member: str, destination: str, arguments: Sequence[str] = ()) -> bytes:
    """One D-Bus method call with string arguments, little endian (D-Bus specification, "Message Format")."""
    body = b""
    for argument in arguments:
        body = _padded(body, 4) + _string(argument)
    fields = b""
    for code, kind, value in ((1, "o", path), (2, "s", interface), (3, "s", member), (6, "s", destination)):
        fields = _padded(fields, 8) + struct.pack("<B", code) + b"\x01" + kind.encode() + b"\0" + _string(value)
    if arguments:
        signature = "s" * len(arguments)
        fields = _padded(fields, 8) + b"\x08\x01g\0" + struct.pack("<B", len(signature)) + signature.encode() + b"\0"
    head = struct.pack("<BBBBIII", ord("l"), 1, 0, 1, len(body), serial, len(fields))
    return _padded(head + fields, 8) + body


class Bus:
    """A connection that is told of everything systemd says about one unit."""

    def __init__(self, unit: str) -> None:
        path = bus_path(unit)
        self.marks = (path.encode() + b"\0", unit.encode() + b"\0", b"Reloading\0")
        self.held = b""
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(5)
        self.socket.connect(BUS)
        identity = "".join("%02x" % ord(digit) for digit in str(os.geteuid()))
        self.socket.sendall(b"\0AUTH EXTERNAL " + identity.encode() + b"\r\n")
        answer = b""
        while not answer.endswith(b"\r\n"):
            piece = self.socket.recv(4096)
            if not piece:
                raise OSError("the bus closed the connection")
            answer += piece
        if not answer.startswith(b"OK"):
            raise OSError("the bus refused the login")
        bus, manager = "org.freedesktop.DBus", "org.freedesktop.systemd1"
        rule = "type='signal',sender='%s'," % manager
        self.socket.sendall(
            b"BEGIN\r\n"
            + call(1, "/org/freedesktop/DBus", bus, "Hello", bus)
            + call(2, "/org/freedesktop/DBus", bus, "AddMatch", bus, (rule + "path='%s'" % path,))
            + call(3, "/org/freedesktop/DBus", bus, "AddMatch", bus, (rule + "interface='%s.Manager'" % manager,))
            + call(4, "/org/freedesktop/systemd1", manager + ".Manager", "Subscribe", manager)
        )
        self.subscribed = False
        deadline = time.monotonic() + 5
        while not self.subscribed:
            if time.monotonic() > deadline:
                raise OSError("systemd did not answer on the bus")
            self.news()
        self.socket.settimeout(None)

    def fileno(self) -> int:
        return self.socket.fileno()

    def news(self) -> bool:
        """Read what has come; True when any of it concerns the unit. Raises OSError when the bus is gone."""
        piece = self.socket.recv(65536)
        if not piece:
            raise OSError("the bus closed the connection")
        self.held += piece
        concerned = False
        while len(self.held) >= 16:
            little = self.held[:1] == b"l"
            order = "<" if little else ">"
            kind = self.held[1:2]
            body, _, fields = struct.unpack(order + "III", self.held[4:16])
            length = 16 + fields + (-fields % 8) + body
            if len(self.held) < length:
                break
            message, self.held = self.held[:length], self.held[length:]
            if kind == b"\x04":
                concerned = concerned or any(mark in message for mark in self.marks)
            elif kind in (b"\x02", b"\x03") and b"\x05\x01u\0" in message:
                reply = message[message.index(b"\x05\x01u\0") + 4 :][:4]
                if struct.unpack(order + "I", reply)[0] == 4:
                    if kind == b"\x03":
                        raise OSError("systemd refused the subscription")
                    self.subscribed = True
        return concerned


def look() -> Optional[Dict[str, str]]:
    """The unit's properties by one systemctl; None when it did not answer."""
    done = subprocess.Popen(
        ["systemctl", "show", "-p", ",".join(ASK["properties"]), ASK["unit"]],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    out, err = done.communicate()
    if done.returncode != 0:
        sys.stderr.write(err.decode("utf-8", "replace"))
        return None
    block = {}
    for line in out.decode("utf-8", "replace").splitlines():
        key, equals, value = line.partition("=")
        if equals:
            block[key] = value
    return block


def signs(block: Dict[str, str]) -> List[Any]:
    """What can be seen of the unit without a fork: its main process and its cgroup's members."""
    root = os.environ.get("RELAUNCH_PRACTICE_ROOT", "")
    found: List[Any] = []
    main = block.get("MainPID", "0")
    group = block.get("ControlGroup", "")
    names = ["/proc/%s/stat" % main] if main not in ("", "0") else []
    if group:
        names += [root + "/sys/fs/cgroup" + group + "/cgroup.procs", "/sys/fs/cgroup/systemd" + group + "/cgroup.procs"]
    for name in names:
        try:
            with open(name) as source:
                text = source.read()
            found.append(text.rpartition(")")[2].split()[0:20:19] if name.endswith("/stat") else text)
        except (OSError, IndexError):
            found.append(None)
    return found


def wait(bus: Optional[Bus], block: Dict[str, str]) -> Tuple[bool, Optional[Bus]]:
    """Until something may have changed. Returns False when stdin has closed, and the bus or None when it broke."""
    watched: List[Any] = [0] if bus is None else [0, bus]
    before, began = signs(block) if bus is None else [], time.monotonic()
    while True:
        ready = select.select(watched, [], [], None if bus is not None else 0.25)[0]
        if 0 in ready and not os.read(0, 4096):
            return False, bus
        if bus is None:
            if time.monotonic() - began >= 1.0 or signs(block) != before:
                return True, None
        elif bus in ready:
            try:
                if bus.news():
                    return True, bus
            except OSError:
                return True, None


def main() -> int:
    bus: Optional[Bus] = None
    if not os.environ.get("RELAUNCH_PRACTICE_ROOT"):
        try:
            bus = Bus(ASK["unit"])
        except (OSError, ValueError):
            bus = None
    told: Optional[Dict[str, str]] = None
    going = True
    while going:
        block = look()
        if block is None:
            return 1
        if block != told:
            told = block
            sys.stdout.write(json.dumps(block) + "\n")
            sys.stdout.flush()
        going, bus = wait(bus, block)
    return 0


sys.exit(main())
