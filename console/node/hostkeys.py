"""Whose key is it: host keys are known, unknown, changed or revoked, and only known ones are ever accepted by themselves.

asyncssh raises the same error for an unknown and for a changed key, obeys its callback in both cases, and turns checking
off altogether for `UserKnownHostsFile none` (ENGINEERING 2b, measured). So nothing of that is used: the trusted keys are
read here, handed over explicitly, and the callback always says no. It only remembers the key, which is classified here. An
*unknown* key may be accepted by a person who has seen its fingerprint; it is then kept in a file of our own, since
`~/.ssh/known_hosts` belongs to OpenSSH. A *changed* or *revoked* key is never acceptable.

Keys are looked up by name only. A key that is known for the address alone would let a wrong DNS answer lead to another
machine of the same operator without a word.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable
from enum import Enum
from pathlib import Path

from console.errors import HostKeyRejected
from console.node.prompts import Prompts, UnknownHost
from console.node.ssh_library import asyncssh, get_default_certificate_algs, get_default_public_key_algs


class HostKeyState(Enum):
    KNOWN = "known"
    UNKNOWN = "unknown"
    CHANGED = "changed"
    REVOKED = "revoked"


def own_file() -> Path:
    """$XDG_STATE_HOME/relaunch/known_hosts: keys that a person accepted in Relaunch."""
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser() / "relaunch" / "known_hosts"


def read_trusted(files: Iterable[str]) -> asyncssh.SSHKnownHosts:
    """The entries of all `files` that exist. A line that cannot be read is skipped, as OpenSSH does: it trusts nothing."""
    known = asyncssh.import_known_hosts("")
    for name in files:
        try:
            text = Path(name).read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        for line in text.splitlines():
            try:
                known.load(line)
            except ValueError:
                continue
    return known


def lookup_name(host: str, port: int) -> str:
    """How known_hosts files write a host: `name`, or `[name]:port` when the port is not 22."""
    return host if port == 22 else f"[{host}]:{port}"


def classify(known: asyncssh.SSHKnownHosts, host: str, port: int, key: asyncssh.SSHKey) -> HostKeyState:
    """What `known` says of `key` for `host`. Keys of another type known for the host count as changed: someone who
    answers for it would offer the type that is not known."""
    keys, _, revoked, *_ = asyncssh.match_known_hosts(known, host, "", None if port == 22 else port)
    if key in revoked:
        return HostKeyState.REVOKED
    if key in keys:
        return HostKeyState.KNOWN
    return HostKeyState.CHANGED if keys else HostKeyState.UNKNOWN


def pinned_key(pin: str) -> asyncssh.SSHKey:
    """The key of a pin as `ssh-ed25519 AAAA…`, or as a whole known_hosts line. Raises `asyncssh.KeyImportError`."""
    try:
        return asyncssh.import_public_key(pin)
    except asyncssh.KeyImportError:
        return asyncssh.import_public_key(pin.partition(" ")[2])


class HostKeyCheck:
    """The check of one login attempt; `trusted_keys` goes to asyncssh, `seen` is what the server showed."""

    def __init__(self, node: str, files: tuple[str, ...], pin: str | None = None) -> None:
        self.node = node
        self.files = files
        self.pin = pin
        self.host = ""
        """The name the key was looked up by, known once the connection was made."""
        self.port = 22
        self.seen: asyncssh.SSHKey | None = None
        self.revoked = False
        """Some key is revoked for this host."""
        self._known = read_trusted((*files, str(own_file())))

    def algorithms(self, host: str, port: int) -> list[str]:
        """Key types to ask the server for: those it is known by come first, so that a known host is recognised, and all
        others after them, so that one which has lost its known key shows the one it has. Certificates only where an
        authority is trusted. Raises `asyncssh.KeyImportError` for a pin that is no key."""
        keys, authorities, _ = self._matching(host, port)
        wanted = get_default_certificate_algs() if authorities else []
        for key in keys:
            wanted = [*wanted, *key.sig_algorithms]
        return [name.decode() for name in dict.fromkeys([*wanted, *get_default_public_key_algs()])]

    def trusted_keys(self, host: str, addr: str, port: int | None) -> tuple[list[asyncssh.SSHKey], ...]:
        """asyncssh asks here for the keys it may accept. A callable is never taken for "check nothing"."""
        self.host, self.port = host, port or 22
        keys, authorities, revoked = self._matching(self.host, self.port)
        self.revoked = bool(revoked)
        return keys, authorities, revoked

    def offered(self, key: asyncssh.SSHKey) -> bool:
        """The server's key was in no list. True only for a pinned fingerprint that it has."""
        self.seen = key
        return self.pin is not None and self.pin == key.get_fingerprint()

    def state(self) -> HostKeyState:
        """Of the key that was refused. asyncssh refuses a revoked one without showing it."""
        if self.seen is None:
            return HostKeyState.REVOKED if self.revoked else HostKeyState.CHANGED
        if self.pin is not None:
            return HostKeyState.CHANGED
        return classify(self._known, self.host, self.port, self.seen)

    def _matching(
        self, host: str, port: int
    ) -> tuple[list[asyncssh.SSHKey], list[asyncssh.SSHKey], list[asyncssh.SSHKey]]:
        """Keys, authorities and revoked keys of a host."""
        if self.pin is not None:
            return ([] if self.pin.startswith("SHA256:") else [pinned_key(self.pin)]), [], []
        found = asyncssh.match_known_hosts(self._known, host, "", None if port == 22 else port)
        return list(found[0]), list(found[1]), list(found[2])

    def rejection(self) -> HostKeyRejected:
        """The error that says what is wrong with the key that was refused, and the exact command that would be right."""
        state, name = self.state(), lookup_name(self.host, self.port)
        shown = f" It shows {_described(self.seen)}." if self.seen else ""
        if state is HostKeyState.REVOKED:
            return HostKeyRejected(
                f"{self.node}: the host key of {name} is revoked.{shown}",
                "This machine must not be trusted under that key. Give it a new host key, or find out who answers there.",
            )
        if self.pin is not None:
            return HostKeyRejected(
                f"{self.node}: the host key of {name} is not the pinned one.{shown}",
                f"If the machine was set up anew on purpose, change host_key (now {_short(self.pin)}) in the nodes file.",
            )
        if state is HostKeyState.CHANGED:
            return HostKeyRejected(
                f"{self.node}: the host key of {name} has CHANGED; someone may be answering in its place.{shown}",
                f"If the machine was set up anew on purpose: {self._removal()}",
            )
        store = shlex.quote(str(own_file()))
        return HostKeyRejected(
            f"{self.node}: the host key of {name} is not known.{shown}",
            "Compare it with what `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` prints on the machine itself, then "
            f"accept it once: mkdir -p {shlex.quote(str(own_file().parent))} && "
            f"ssh-keyscan -p {self.port} {shlex.quote(self.host)} >> {store}",
        )

    def _removal(self) -> str:
        name = shlex.quote(lookup_name(self.host, self.port))
        port = None if self.port == 22 else self.port
        holding = [
            file
            for file in (*self.files, str(own_file()))
            if asyncssh.match_known_hosts(read_trusted([file]), self.host, "", port)[0]
        ]
        return " && ".join(f"ssh-keygen -R {name} -f {shlex.quote(file)}" for file in holding)


async def settle(check: HostKeyCheck, prompts: Prompts | None) -> None:
    """Have a person look at a key that was refused, and keep it when they accept. Raises `HostKeyRejected` unless so."""
    key = check.seen
    if prompts is None or key is None or check.state() is not HostKeyState.UNKNOWN:
        raise check.rejection()
    store = own_file()
    question = UnknownHost(
        node=check.node,
        host=check.host,
        port=check.port,
        algorithm=key.get_algorithm(),
        fingerprint=key.get_fingerprint(),
        stored_in=str(store),
    )
    if not await prompts.accept_host(question):
        raise check.rejection()
    remember(store, lookup_name(check.host, check.port), key)


def remember(store: Path, name: str, key: asyncssh.SSHKey) -> None:
    """Append an accepted key to our own file, which only its owner may read or write."""
    store.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    line = f"{name} {key.export_public_key().decode().strip()}\n"
    descriptor = os.open(store, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, line.encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _described(key: asyncssh.SSHKey) -> str:
    return f"{key.get_algorithm()} {key.get_fingerprint()}"


def _short(pin: str) -> str:
    try:
        return pin if pin.startswith("SHA256:") else pinned_key(pin).get_fingerprint()
    except asyncssh.KeyImportError:
        return repr(pin)
