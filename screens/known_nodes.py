"""Which machines this account knows, and what it remembers of each: the nodes file, the OpenSSH config, this machine, the
practice node, joined with the history and with what was last seen there. Files and the store are read; nothing is connected to.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from console.deploy.store import RunRow, Store, state_folder
from console.errors import RelaunchError
from console.node.nodes_file import default_nodes_file, load_nodes
from console.node.target import Target, openssh_config_files
from console.seen import Seen
from console.text import clean, headline
from screens.first_use import openssh_hosts
from screens.runs import history

Kind = Literal["practice", "local", "file", "openssh"]
PRACTICE = "rehearsal"
RUNS_READ = 500
"""Newest runs of the history that are searched for what was done on a node."""


@dataclass(frozen=True, slots=True)
class KnownNode:
    """One machine. `where` is how it is reached, as far as our own files say. `last` is the newest run on it, `good` the
    newest that ended well."""

    name: str
    kind: Kind
    where: str = ""
    production: bool = False
    up: bool | None = None
    """Whether the practice node runs; None: not known without asking it."""
    last: RunRow | None = None
    good: RunRow | None = None
    seen: Seen | None = None
    """How it was when it was last looked at; None when it never was."""
    past: Mapping[str, RunRow] = field(default_factory=dict)
    """The newest run there by profile."""


def known_nodes(store: Store) -> tuple[tuple[KnownNode, ...], str]:
    """All machines, and a sentence on what could not be read, else empty. Reads files; connects to nothing."""
    trouble = ""
    path = default_nodes_file()
    targets: dict[str, Target] = {}
    try:
        targets = load_nodes(path) if path.exists() else {}
    except RelaunchError as error:
        trouble = headline(clean(error.message), 300)
    past = past_of(store)
    found = [_practice(past), known_node("local", "local", "no SSH", past)]
    found += [
        known_node(name, "file", address(target), past, production=target.production)
        for name, target in targets.items()
    ]
    found += [
        known_node(host, "openssh", "", past) for host in openssh_hosts(openssh_config_files()) if host not in targets
    ]
    return tuple(found), trouble


def address(target: Target) -> str:
    """`root@10.0.0.11:2222 via bastion`, of what the nodes file says."""
    user = f"{target.user}@" if target.user else ""
    port = f":{target.port}" if target.port else ""
    via = f" via {target.jump}" if target.jump else ""
    return clean(f"{user}{target.host}{port}{via}")


@dataclass(frozen=True, slots=True)
class _Past:
    """What this account knows of one node's past."""

    last: RunRow | None
    good: RunRow | None
    seen: Seen | None
    by_profile: Mapping[str, RunRow]


def past_of(store: Store) -> Callable[[str, bool], _Past]:
    """(name, rehearsal) -> what is known of its past."""
    rows: tuple[RunRow, ...] = ()
    seen: Mapping[tuple[str, bool], Seen] = {}
    with contextlib.suppress(Exception):  # the history is a help here, not the matter
        rows = history(store, RUNS_READ, {})
        seen = store.seen()

    def of(name: str, rehearsal: bool) -> _Past:
        mine = [row for row in rows if row.rehearsal == rehearsal and (rehearsal or row.node == name)]
        served = [row for row in mine if row.code == 0 and row.verb in ("redeploy", "resume", "rollback")]
        by_profile = {row.profile: row for row in reversed(mine)}
        return _Past(next(iter(mine), None), next(iter(served), None), seen.get((name, rehearsal)), by_profile)

    return of


def known_node(
    name: str, kind: Kind, where: str, past: Callable[[str, bool], _Past], *, production: bool = False
) -> KnownNode:
    known = past(name, False)
    return KnownNode(clean(name), kind, where, production, None, known.last, known.good, known.seen, known.by_profile)


def _practice(past: Callable[[str, bool], _Past]) -> KnownNode:
    from console.rehearsal import practice

    try:
        running = practice.status(state_folder() / "rehearsal")
    except (OSError, RelaunchError, ValueError):
        running = None
    where = f"{running.host}:{running.port}" if running else "starts when it is opened"
    known = past(PRACTICE, True)
    return KnownNode(PRACTICE, "practice", where, False, running is not None, known.last, known.good, known.seen)
