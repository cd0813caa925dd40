"""Which machine is meant: `parse_target` turns what an operator typed into a `Target`.

`local`, a name of the nodes file, an OpenSSH host alias, `user@host:port`, `[v6]:port` or `ssh://…`, in this order. For all
but `local` the OpenSSH config of the operator and of the system stays in force for whatever the target leaves open (host
name, port, user, keys, ProxyJump, known hosts); what the nodes file or the text says wins over it. This module opens no
connection and imports no SSH library.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from console.errors import UsageError

SudoMode: TypeAlias = Literal["auto", "never"]
"""`auto`: a login that is not root uses sudo, without a password when that works, else asks once. `never`: no sudo."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A machine and how to log in there. None and () leave a setting to the OpenSSH config, or to its default."""

    name: str
    """What the operator calls it."""
    kind: Literal["ssh", "local"] = "ssh"
    host: str = ""
    """Host name, address, or OpenSSH alias."""
    port: int | None = None
    user: str | None = None
    jump: str | None = None
    """Hosts to go through, as in ProxyJump, commas between; "" goes straight whatever the OpenSSH config says."""
    through: tuple[Target, ...] = ()
    """The machines to go through, in order, where the nodes file knows one of them; wins over `jump`."""
    identity_files: tuple[str, ...] = ()
    """Only these keys are offered, from file or agent."""
    known_hosts: tuple[str, ...] | None = None
    """Files; () trusts none, so that only Relaunch's own file and `host_key` count."""
    host_key: str | None = None
    """Pin: the one key that is accepted, as `ssh-ed25519 AAAA…` or `SHA256:…`."""
    production: bool = False
    """Mutating verbs ask for the node's name to be typed."""
    sudo: SudoMode = "auto"
    config: tuple[str, ...] = ()
    """OpenSSH client config files that apply; none unless `parse_target` put them here."""


LOCAL = Target(name="local", kind="local")

_USER = re.compile(r"[^\s\x00-\x20\x7f:/\\'\"`$;&|<>(){}*?!#%-][^\s\x00-\x20\x7f:/'\"`$;&|<>(){}*?!#]*\Z")
_HOST = re.compile(r"(?!-)[\w.-]{1,253}\Z")
_V6 = re.compile(r"[0-9A-Fa-f:.]+(%[\w.-]+)?\Z")
_FORMS = "write local, a name of the nodes file, an OpenSSH alias, or user@host:port ([address]:port for IPv6)"


def parse_target(text: str, nodes_file: Path | None = None) -> Target:
    """The machine that `text` means. Raises `UsageError`, and `InvalidFile` when the nodes file has problems.

    `nodes_file` defaults to $XDG_CONFIG_HOME/relaunch/nodes.yaml, which need not exist; one that is given must.
    """
    from console.node.nodes_file import default_nodes_file, load_nodes

    if text == "local":
        return LOCAL
    path = nodes_file or default_nodes_file()
    if nodes_file is not None or path.exists():
        known = load_nodes(path, config=openssh_config_files())
        if text in known:
            return known[text]
    user, host, port = split_address(text)
    return Target(name=text, host=host, port=port, user=user, config=openssh_config_files())


def split_address(text: str) -> tuple[str | None, str, int | None]:
    """User, host and port of `[ssh://][user@]host[:port]`; None for what is not said. Raises `UsageError`."""
    rest = text.removeprefix("ssh://").removesuffix("/") if text.startswith("ssh://") else text
    before, at, rest = rest.rpartition("@")
    user = before if at else None
    if user is not None and not _USER.match(user):
        raise UsageError(f"{text!r}: {user!r} is no user name", _FORMS)
    port = ""
    if rest.startswith("["):
        host, bracket, port = rest[1:].partition("]")
        if not bracket or (port and not port.startswith(":")) or not _V6.match(host):
            raise UsageError(f"{text!r} is no IPv6 address in brackets", _FORMS)
        port = port.removeprefix(":")
        explicit = rest.endswith("]") or bool(port)
    elif rest.count(":") > 1 and _V6.match(rest):
        host, explicit = rest, True
    else:
        host, colon, port = rest.partition(":")
        explicit = not colon or bool(port)
        if not _HOST.match(host):
            raise UsageError(f"{text!r}: {host!r} is no host name" if host else f"{text!r} names no host", _FORMS)
    if not explicit or (port and not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65536)):
        raise UsageError(f"{text!r}: {port!r} is no port; it is a number from 1 to 65535", _FORMS)
    return user, host, int(port) if port else None


def openssh_config_files() -> tuple[str, ...]:
    """The client config files that OpenSSH itself would read, in its order, as far as they can be read."""
    files = (Path("~/.ssh/config").expanduser(), Path("/etc/ssh/ssh_config"))
    return tuple(str(path) for path in files if os.access(path, os.R_OK))
