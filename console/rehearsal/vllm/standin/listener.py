"""The port of a server: TCP on a test node, `ROOT/net/PORT.sock` with `PORT.json` beside it on the practice node.

The port is taken before the load and listens after it, so that connections are refused in between, as with vLLM.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
from pathlib import Path

from .gpu_state import ROOT_VARIABLE, lives, start_ticks


def practising() -> bool:
    """True on the practice node, whose ports are UNIX sockets."""
    return bool(os.environ.get(ROOT_VARIABLE))


class Listener:
    """One port, taken when this is made; raises OSError (EADDRINUSE) when someone has it."""

    def __init__(self, root: Path, host: str, port: int) -> None:
        self.port = port
        self._taken: Path | None = None
        self._told: Path | None = None
        if practising():
            self.sock = self._unix(root / "net")
        else:
            self.sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.sock.bind((host, port))

    def _unix(self, net: Path) -> socket.socket:
        net.mkdir(parents=True, exist_ok=True)
        # UNIX socket names are short; the practice server keeps ROOT/net as a link into a short folder
        net = Path(os.path.realpath(net))
        path, told, taken = (net / f"{self.port}.{kind}" for kind in ("sock", "json", "bound"))
        if _held(told) or _held(taken) or _answers(path):
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        for stale in (path, told, taken):
            stale.unlink(missing_ok=True)
        sock = socket.socket(socket.AF_UNIX)
        sock.bind(str(path))
        _tell(taken)
        self._taken, self._told = taken, told
        return sock

    def listening(self) -> None:
        """Say who listens, once it does."""
        if self._told is not None:
            _tell(self._told)

    def close(self) -> None:
        """Give the port back."""
        with contextlib.suppress(OSError):
            self.sock.close()
        for path in (self._told, self._taken):
            if path is not None:
                path.unlink(missing_ok=True)
        if self._told is not None:
            self._told.with_suffix(".sock").unlink(missing_ok=True)


def _tell(path: Path) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(json.dumps({"pid": os.getpid(), "started": start_ticks(os.getpid())}))
    os.replace(draft, path)


def _held(path: Path) -> bool:
    try:
        data = json.loads(path.read_text())
        return int(data["pid"]) != os.getpid() and lives(int(data["pid"]), data.get("started"))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _answers(path: Path) -> bool:
    if not path.exists():
        return False
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True
