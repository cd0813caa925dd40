"""One login: the way through jump hosts, host keys, authentication, and what each failure means to an operator.

A question for a person is asked between two attempts and never inside one, so that no server-side or own time limit runs
while somebody compares a fingerprint.
"""

from __future__ import annotations

import asyncio
import errno
import getpass
import os
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from console.errors import AuthenticationFailed, RelaunchError, Unreachable, UsageError
from console.node.hostkeys import HostKeyCheck, settle
from console.node.prompts import Prompts
from console.node.ssh_library import ConfigParseError, SSHClientConfig, SSHConfig, asyncssh
from console.node.target import Target, split_address
from console.text import Secret, clean

CONNECTS_PER_JUMP = 4
"""Logins through one jump host at a time: sshd drops the surplus of unauthenticated ones (MaxStartups 10:30:100)."""
_DEEPEST = 8
_PASSWORDS = 2


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of everything a link waits for; the defaults are for real networks, tests shorten them."""

    connect: float = 15
    """One login, from name resolution to authentication."""
    keepalive: float = 10
    keepalive_count: int = 3
    """Unanswered keep-alives that end a connection."""
    beat_first: float = 2
    """A short session pays for no heartbeat."""
    beat_every: float = 5
    beat_limit: float = 30
    """A heartbeat unanswered for so long ends the connection."""
    backoff_first: float = 1
    backoff_most: float = 30
    patience: float = 30
    """How long a call waits for a reconnect."""


@dataclass(slots=True)
class Passwords:
    """What was typed in this session, so that a reconnect asks nobody again."""

    by_login: dict[str, Secret] = field(default_factory=dict)


@asynccontextmanager
async def logged_in(
    target: Target, prompts: Prompts | None, timing: Timing, passwords: Passwords
) -> AsyncIterator[asyncssh.SSHClientConnection]:
    """An authenticated connection to `target`; closed with all its jump hosts at the end.

    Raises `Unreachable` and its kinds, and `UsageError` when the OpenSSH config or a key file cannot be used.
    """
    async with AsyncExitStack() as stack:
        first, *rest = route(target)
        async with _turn(first.name if rest else None):
            connection = await _hop(first, None, prompts, timing, passwords)
        stack.push_async_callback(_closed, connection)
        for hop in rest:
            connection = await _hop(hop, connection, prompts, timing, passwords)
            stack.push_async_callback(_closed, connection)
        yield connection


def route(target: Target, depth: int = 0) -> list[Target]:
    """The machines to log in to, one after another, `target` last. Raises `UsageError`."""
    if depth > _DEEPEST:
        raise UsageError(f"{target.name}: more than {_DEEPEST} jump hosts; ProxyJump leads in a circle")
    if target.through:
        first, *rest = target.through
        return [*route(first, depth + 1), *rest, target]
    jump = target.jump
    if jump is None:
        jump = _text(openssh_settings(target).get("ProxyJump"))
    hops: list[Target] = []
    for text in jump.split(",") if jump else ():
        user, host, port = split_address(text.strip())
        hop = Target(
            name=host, host=host, port=port, user=user, config=target.config, known_hosts=target.known_hosts,
            jump="" if hops else None,
        )  # fmt: skip
        hops += [hop] if hops else route(hop, depth + 1)
    return [*hops, target]


def openssh_settings(target: Target) -> SSHConfig:
    """What the OpenSSH config files of `target` say about it. Raises `UsageError`."""
    try:
        return SSHClientConfig.load(
            None, list(target.config), False, False, False, getpass.getuser(), target.user or (), target.host,
            target.port or (),
        )  # fmt: skip
    except (ConfigParseError, asyncssh.IllegalUserName, UnicodeDecodeError) as error:
        raise UsageError(f"the OpenSSH config cannot be read: {error}") from error


def known_hosts_files(target: Target, settings: SSHConfig) -> tuple[str, ...]:
    """The files whose keys count for `target`. `UserKnownHostsFile none` means no such file, never "accept all"."""
    if target.known_hosts is not None:
        return target.known_hosts
    user = _list(settings.get("UserKnownHostsFile", ["~/.ssh/known_hosts", "~/.ssh/known_hosts2"]))
    system = _list(settings.get("GlobalKnownHostsFile", ["/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2"]))
    return tuple(os.path.expanduser(name) for name in (*user, *system))


class _Client(asyncssh.SSHClient):
    """Answers asyncssh during one attempt, and remembers what it was asked."""

    def __init__(self, check: HostKeyCheck) -> None:
        self._check = check
        self.methods: dict[str, None] = {}
        """What the server would take for authentication, in the order it was tried."""
        self.lost: Exception | None = None
        """Why the connection ended."""

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = exc

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        return self._check.offered(key)

    def public_key_auth_requested(self) -> None:
        self.methods["publickey"] = None

    def password_auth_requested(self) -> None:
        self.methods["password"] = None

    def kbdint_auth_requested(self) -> Any:
        self.methods["keyboard-interactive"] = None
        return NotImplemented  # asyncssh then answers with the password, if there is one

    @property
    def wanted_password(self) -> bool:
        return "password" in self.methods or "keyboard-interactive" in self.methods


async def _hop(
    target: Target,
    tunnel: asyncssh.SSHClientConnection | None,
    prompts: Prompts | None,
    timing: Timing,
    passwords: Passwords,
) -> asyncssh.SSHClientConnection:
    """Log in to one machine, asking a person between attempts where that can help."""
    settings = openssh_settings(target)
    login = f"{_user(target, settings)}@{_text(settings.get('Hostname')) or target.host}"
    password = passwords.by_login.get(login)
    asked = 0
    while True:
        check = HostKeyCheck(target.name, known_hosts_files(target, settings), target.host_key)
        client = _Client(check)
        try:
            return await _attempt(target, settings, tunnel, client, check, timing, password)
        except asyncssh.HostKeyNotVerifiable:
            await settle(check, prompts)
        except asyncssh.PermissionDenied as error:
            if prompts is None or not client.wanted_password or asked == _PASSWORDS:
                raise _refused(target, login, client) from error
            password = await prompts.password(f"password of {login}" + (", once more" if asked else ""))
            if password is None:
                raise _refused(target, login, client) from error
            asked += 1
            passwords.by_login[login] = password
        except (asyncssh.Error, OSError, TimeoutError) as error:
            raise _unreachable(target, login, error) from error
        except ValueError as error:  # asyncssh reports unusable keys, algorithms and config values so
            raise UsageError(f"{target.name}: the OpenSSH settings cannot be used: {clean(str(error))}") from error


async def _attempt(
    target: Target,
    settings: SSHConfig,
    tunnel: asyncssh.SSHClientConnection | None,
    client: _Client,
    check: HostKeyCheck,
    timing: Timing,
    password: Secret | None,
) -> asyncssh.SSHClientConnection:
    options: dict[str, Any] = dict(
        _key_options(target, settings),
        tunnel=tunnel,
        config=list(target.config),
        known_hosts=check.trusted_keys,
        client_factory=lambda: client,
        connect_timeout=timing.connect,
        keepalive_interval=timing.keepalive,
        keepalive_count_max=timing.keepalive_count,
        utf8_decode_errors="replace",  # a banner in Latin-1 must not end the connection
        disable_trivial_auth=True,
        agent_forwarding=False,
        x11_forwarding=False,
        x509_trusted_certs=None,
        # Of the OpenSSH config only what leads to the machine applies; RemoteCommand, RequestTTY and the environment
        # are for a person's own sessions.
        command=None,
        request_pty=False,
        env=None,
        send_env=None,
    )
    if target.port is not None:
        options["port"] = target.port
    if target.user is not None:
        options["username"] = target.user
    if password is not None:
        options["password"] = password.reveal()
    if settings.get("HostKeyAlgorithms") is None:
        name = _text(settings.get("HostKeyAlias")) or _text(settings.get("Hostname")) or target.host
        port = settings.get("Port")
        options["server_host_key_algs"] = check.algorithms(name, port if isinstance(port, int) else 22)
    connection = await asyncssh.connect(target.host, **options)
    connection.set_extra_info(client=client)
    return connection


def end_reason(connection: asyncssh.SSHClientConnection) -> str:
    """Why a connection that has ended did so, in words."""
    client = connection.get_extra_info("client")
    lost = client.lost if isinstance(client, _Client) else None
    if "keepalive" in str(lost):
        return "the node no longer answers"
    return f"the connection was lost: {clean(str(lost))}" if lost is not None else "the connection was closed"


def _key_options(target: Target, settings: SSHConfig) -> dict[str, Any]:
    """Which keys are offered. OpenSSH passes over an IdentityFile that is not there; asyncssh would stop."""
    if target.identity_files:
        missing = next((name for name in target.identity_files if not os.access(name, os.R_OK)), None)
        if missing is not None:
            raise UsageError(
                f"{target.name}: the identity {missing} cannot be read", "correct identity in the nodes file"
            )
        public = [f"{name}.pub" for name in target.identity_files if Path(f"{name}.pub").is_file()]
        keys: dict[str, Any] = {"client_keys": list(target.identity_files), "ignore_encrypted": True}
        return keys | ({"agent_identities": public} if public else {"agent_path": None})
    named = [os.path.expanduser(name) for name in _list(settings.get("IdentityFile"))]
    if named:
        return {"client_keys": [name for name in named if os.access(name, os.R_OK)], "ignore_encrypted": True}
    return {}


def _refused(target: Target, login: str, client: _Client) -> AuthenticationFailed:
    methods = f" (it takes {', '.join(client.methods)})" if client.methods else ""
    keys = ", ".join(target.identity_files) or "a key of ~/.ssh or of the agent"
    return AuthenticationFailed(
        f"{target.name}: {login} was refused{methods}",
        f"See that {keys} is allowed there: `ssh {login}` must log in without a question. "
        "A key with a passphrase must be in the agent first: ssh-add",
    )


def _unreachable(target: Target, login: str, error: BaseException) -> RelaunchError:
    """The failure in an operator's words: what was seen, and what it usually means."""
    where = f"{target.name} ({login})" if login != target.name else target.name
    remedy = "See that the machine is up and that `ssh` reaches it from here."
    number = error.errno if isinstance(error, OSError) else None
    if isinstance(error, socket.gaierror):
        text = "the name cannot be resolved"
        remedy = "Give an address, a name of the nodes file, or an alias of ~/.ssh/config."
    elif isinstance(error, TimeoutError) or number == errno.ETIMEDOUT:
        text = "no answer in time; the machine is down, hangs, or a firewall drops the packets"
    elif isinstance(error, ConnectionRefusedError) or "Connect call failed" in str(error):
        text, remedy = "the connection is refused; nothing listens on the SSH port", "See that sshd runs, and the port."
    elif isinstance(error, ConnectionResetError | asyncssh.ConnectionLost):
        text = "the connection was broken during the login; sshd is overloaded, starting, or does not want this address"
    elif number in (errno.EHOSTUNREACH, errno.ENETUNREACH):
        text = "there is no route to it"
    elif isinstance(error, asyncssh.ChannelOpenError):
        text = f"the jump host cannot reach it: {clean(error.reason)}"
    elif isinstance(error, asyncssh.KeyExchangeFailed):
        text = f"no common SSH algorithms: {clean(error.reason)}"
    elif isinstance(error, asyncssh.DisconnectError):
        text = clean(error.reason)
    else:
        text = clean(str(error)) or type(error).__name__
    return Unreachable(f"{where}: {text}", remedy)


async def _closed(connection: asyncssh.SSHClientConnection) -> None:
    """Close, and wait until it is; a peer that no longer answers is not waited for."""
    connection.close()
    try:
        async with asyncio.timeout(1):
            await connection.wait_closed()
    except TimeoutError:
        connection.abort()
        await connection.wait_closed()


_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, asyncio.Semaphore]] = WeakKeyDictionary()


@asynccontextmanager
async def _turn(jump: str | None) -> AsyncIterator[None]:
    """A place among the logins to one jump host at the same time; None needs no place."""
    if jump is None:
        yield
        return
    per_loop = _turns.setdefault(asyncio.get_running_loop(), {})
    async with per_loop.setdefault(jump, asyncio.Semaphore(CONNECTS_PER_JUMP)):
        yield


def _user(target: Target, settings: SSHConfig) -> str:
    return target.user or _text(settings.get("User")) or getpass.getuser()


def _list(value: object) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else []


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
