"""The nodes file: machines by the names an operator gives them.

    nodes:
      gpu1: {host: 10.0.0.11, user: root, production: true}
      lab:  {host: lab.example.org, user: ops, jump: bastion.example.org, identity: ~/.ssh/lab, sudo: auto}

Every key is optional but `host`, which defaults to the name (then an OpenSSH alias may say the rest).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from console.errors import UsageError
from console.node.target import SudoMode, Target, split_address
from console.profile.yamlio import Loc, load


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    host: str | None = Field(None, description="host name, address or OpenSSH alias; the entry's name when absent")
    port: int | None = Field(None, ge=1, le=65535)
    user: str | None = None
    jump: str | None = Field(
        None, description="hosts to go through, as in ProxyJump, or names of this file; none goes straight"
    )
    identity: str | list[str] | None = Field(None, description="private key file, or a list of them")
    known_hosts: str | list[str] | None = None
    host_key: str | None = Field(None, description="the one accepted key: ssh-ed25519 AAAA… or SHA256:…")
    production: bool = False
    sudo: SudoMode = "auto"


class _Nodes(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    nodes: dict[str, _Entry]


def default_nodes_file() -> Path:
    """$XDG_CONFIG_HOME/relaunch/nodes.yaml."""
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "relaunch" / "nodes.yaml"


def load_nodes(path: Path, *, config: tuple[str, ...] = ()) -> dict[str, Target]:
    """The machines in `path` by name. Raises `InvalidFile` with every problem, `UsageError` when it can't be read."""
    nodes = load(path, _Nodes, rules=_rules).nodes
    return {name: _target(name, nodes, config) for name in nodes}


def _target(name: str, nodes: dict[str, _Entry], config: tuple[str, ...]) -> Target:
    entry = nodes[name]
    hops = _hops(entry.jump)
    return Target(
        name=name,
        host=(entry.host or name).strip("[]"),
        port=entry.port,
        user=entry.user,
        jump=None if entry.jump is None else ",".join(hops),
        through=tuple(_hop(hop, nodes, config) for hop in hops) if any(hop in nodes for hop in hops) else (),
        identity_files=_files(entry.identity) or (),
        known_hosts=_files(entry.known_hosts),
        host_key=entry.host_key,
        production=entry.production,
        sudo=entry.sudo,
        config=config,
    )


def _hops(jump: str | None) -> list[str]:
    return [hop.strip() for hop in jump.split(",")] if jump and jump != "none" else []


def _hop(text: str, nodes: dict[str, _Entry], config: tuple[str, ...]) -> Target:
    if text in nodes:
        return _target(text, nodes, config)
    user, host, port = split_address(text)
    return Target(name=text, host=host, port=port, user=user, config=config)


def _files(value: str | list[str] | None) -> tuple[str, ...] | None:
    if value is None:
        return None
    return tuple(os.path.expanduser(item) for item in ([value] if isinstance(value, str) else value))


def _rules(data: Any) -> Iterable[tuple[Loc, str]]:
    nodes = data.get("nodes", {}) if isinstance(data, dict) else {}
    for name, entry in nodes.items() if isinstance(nodes, dict) else ():
        if not isinstance(entry, dict):
            continue
        if name == "local":
            yield ("nodes", name), "local is the machine Relaunch runs on; give this node another name"
        yield from _address_rules(name, entry)
        if _circular(name, nodes):
            yield ("nodes", name, "jump"), "the way leads through the node itself"
        pin = entry.get("host_key")
        if isinstance(pin, str) and not (pin.startswith("SHA256:") or len(pin.split()) >= 2):
            yield ("nodes", name, "host_key"), "write the key as ssh-ed25519 AAAA… or its fingerprint as SHA256:…"


def _circular(name: str, nodes: dict[str, Any]) -> bool:
    """True when following the jumps from `name` leads back to a node that was already passed."""

    def walk(current: str, passed: frozenset[str]) -> bool:
        entry = nodes.get(current)
        jump = entry.get("jump") if isinstance(entry, dict) else None
        hops = [hop for hop in _hops(jump) if hop in nodes] if isinstance(jump, str) else []
        return any(hop in passed or walk(hop, passed | {hop}) for hop in hops)

    return walk(name, frozenset({name}))


def _address_rules(name: str, entry: dict[str, Any]) -> Iterable[tuple[Loc, str]]:
    host = entry.get("host", name)
    if isinstance(host, str):
        try:
            user, _, port = split_address(f"[{host}]" if host.count(":") > 1 and not host.startswith("[") else host)
            if user is not None or port is not None:
                yield ("nodes", name, "host"), "user and port have keys of their own; write the host alone here"
        except UsageError as error:
            at: Loc = ("nodes", name, "host") if "host" in entry else ("nodes", name)
            yield at, error.message
    user = entry.get("user")
    if isinstance(user, str):
        try:
            split_address(f"{user}@host")
        except UsageError:
            yield ("nodes", name, "user"), f"{user!r} is no user name"
    jump = entry.get("jump")
    for hop in _hops(jump) if isinstance(jump, str) else ():
        try:
            split_address(hop)
        except UsageError as error:
            yield ("nodes", name, "jump"), error.message
