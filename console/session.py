"""What one headless process works with: its options, its settings, its store, and the node it talks to.

Everything that a verb needs from outside is opened here and closed again, whatever happens.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import getpass
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from console.deploy.store import Store, state_folder
from console.errors import Refused, UsageError
from console.settings import Settings
from console.text import Secret, clean
from console.verbs import VERBS, verb

if TYPE_CHECKING:
    from console.node.base import Node
    from console.node.prompts import UnknownHost
    from console.node.target import Target
    from console.profile.model import Profile
    from console.rehearsal.practice import Practice


@dataclass(slots=True)
class Session:
    """What one headless process works with."""

    options: argparse.Namespace
    settings: Settings
    store: Store

    def given(self, name: str, default: Any = None) -> Any:
        """An option of the command line, or `default` when it was not given."""
        return getattr(self.options, name, default)

    @property
    def as_json(self) -> bool:
        return bool(self.given("json", False))

    def tell(self, line: str) -> None:
        """One line of the result, on stdout."""
        print(clean(line), flush=True)

    def tell_json(self, data: Any) -> None:
        print(json.dumps(data, ensure_ascii=False), flush=True)


@dataclass(frozen=True, slots=True)
class Connected:
    """An open node. `profile` is None for a verb that needs none."""

    node: Node
    profile: Profile | None
    rehearsal: bool

    def needed_profile(self) -> Profile:
        """The profile of a verb that needs one."""
        if self.profile is None:
            raise UsageError("no profile named", "--profile NAME or FILE")
        return self.profile


@contextlib.asynccontextmanager
async def connected(session: Session, *, loading: str = "") -> AsyncIterator[Connected]:
    """The node and profile that the command line, the environment and the settings name. The module `loading` is imported
    while the link comes up."""
    from console.node.ssh import connect
    from console.node.target import parse_target

    read_only = bool(session.given("read_only", False))
    prompts = TerminalPrompts()
    if session.given("rehearse", False):
        practice, profile = await _rehearsal(session)
        async with connect(practice_target(practice), read_only=read_only, prompts=prompts) as node:
            yield Connected(node, profile, True)
        return
    if session.given("fault"):
        raise UsageError("--fault makes the practice node fail", "add --rehearse; a real node fails by itself")
    name = session.given("node") or session.settings.node
    if not name:
        raise UsageError("no node named", "--node user@host, RELAUNCH_NODE, or `node:` in the settings file")
    nodes = session.given("nodes")
    target = parse_target(name, Path(nodes) if nodes else None)
    await _confirm(session, target)
    if target.kind == "local":
        from console.node.local import LocalNode

        yield Connected(LocalNode(read_only=read_only), _chosen_profile(session, loading), False)
        return
    async with contextlib.AsyncExitStack() as stack:
        link = connect(target, read_only=read_only, prompts=prompts)
        login = asyncio.ensure_future(stack.enter_async_context(link))
        try:
            chosen = await asyncio.to_thread(_chosen_profile, session, loading)
        except BaseException:
            login.cancel()
            await asyncio.gather(login, return_exceptions=True)
            raise
        yield Connected(await login, chosen, False)


def _chosen_profile(session: Session, loading: str) -> Profile | None:
    """The profile of a verb that needs one; `loading` is imported beside."""
    if loading:
        import_module(loading)
    if not _needs_profile(session):
        return None
    from console.profile.load import find_profile

    return find_profile(_profile_name(session), profile_folders(session))


async def _rehearsal(session: Session) -> tuple[Practice, Profile]:
    """The practice node, started when it is not running, and the profile that is rehearsed on it."""
    from console.profile.load import find_profile
    from console.rehearsal.practice import ensure

    faults = tuple(session.given("fault", ()))
    practice = await ensure(state_folder() / "rehearsal", faults=faults, fresh=bool(faults))
    profile = find_profile(session.given("profile") or "rehearsal", profile_folders(session))
    model = profile.model.model_copy(update={"endpoint": practice.hub})
    return practice, profile.model_copy(update={"model": model})


def practice_target(practice: Practice) -> Target:
    """How to log in to a practice node: its own key, its own host key, nothing of the operator's."""
    from console.node.target import Target

    return Target(
        name="rehearsal",
        host=practice.host,
        port=practice.port,
        user=practice.user,
        identity_files=(str(practice.client_key),),
        known_hosts=(),
        host_key=practice.host_key.split(" ", 1)[1],
    )


async def _confirm(session: Session, target: Target) -> None:
    """What mutates a node marked production asks for the node's name, unless --yes was given; a verb that always asks
    has its own name typed on other nodes."""
    if any(session.given(name, False) for name in ("yes", "read_only", "dry_run")):
        return
    name = session.given("verb") or session.options.script or ""
    known = next((item for item in VERBS if item.name == name), None)
    if known is not None and not known.mutates:
        return
    if target.production:
        if not await ask_on_terminal(f"{target.name} is marked production.", target.name):
            raise Refused(f"{target.name} is marked production, and nobody confirmed", "type its name, or give --yes")
    elif (
        known is not None and known.asks and not await ask_on_terminal(f"{name} on {target.name}: {known.help}.", name)
    ):
        raise Refused(f"{name} on {target.name} was not confirmed", f"type {name} on a terminal, or give --yes")


class TerminalPrompts:
    """Questions of a node session, asked on the terminal; without one every answer is no."""

    async def accept_host(self, question: UnknownHost) -> bool:
        return await ask_on_terminal(
            f"{question.host}:{question.port} shows a key that is not known yet:\n"
            f"  {question.algorithm} {question.fingerprint}\n"
            f"Compare it with the one the machine's owner gives you. It would be kept in {question.stored_in}.",
            "yes",
        )

    async def password(self, question: str) -> Secret | None:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            return None
        return Secret(await asyncio.to_thread(getpass.getpass, f"{clean(question)}: "))


def profile_folders(session: Session) -> tuple[Path, ...]:
    """Where profiles stand, the first to be asked first: the command line's, the settings', the account's, ours."""
    from console.profile import load

    given = [Path(item) for item in (session.given("profiles"), session.settings.profiles) if item]
    return load.profile_folders(given)


def _needs_profile(session: Session) -> bool:
    return session.options.script is not None or verb(session.options.verb).needs == "node+profile"


def _profile_name(session: Session) -> str:
    name = session.given("profile") or session.settings.profile
    if not name:
        raise UsageError("no profile named", "--profile NAME or FILE; `relaunch profile list` shows what there is")
    return str(name)


def hub_token(environment: Mapping[str, str]) -> Secret:
    """The hub token as huggingface_hub finds it: HF_TOKEN, the file HF_TOKEN_PATH names, the login's token file."""
    if environment.get("HF_TOKEN"):
        return Secret(environment["HF_TOKEN"].strip())
    home = environment.get("HF_HOME") or os.path.expanduser("~/.cache/huggingface")
    path = Path(environment.get("HF_TOKEN_PATH") or os.path.join(home, "token"))
    try:
        return Secret(path.read_text().strip())
    except OSError:
        return Secret("")


async def ask_on_terminal(question: str, word: str) -> bool:
    """Ask on the terminal; True when the operator types `word`. Without a terminal the answer is no."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    sys.stderr.write(f"{clean(question)}\n  type {clean(word)} to agree, anything else declines: ")
    sys.stderr.flush()
    answer = await asyncio.to_thread(sys.stdin.readline)
    return bool(answer.strip() == word)
