"""Becoming root on a node: nothing for a root login, `sudo -n` where that works, else a password asked once.

The password travels as the first line of stdin, never in argv or environment. sudo reads exactly that line and the command
gets the rest (measured, ENGINEERING 2b). Where a password is needed every command is run through `env`, the very program
the password was tried with: a rule like `NOPASSWD: /usr/bin/systemctl` would else start the command without reading the
password, and the command would find it on its stdin.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum

from console.node.base import Argv, Denied, Done, Lost, Result
from console.node.prompts import Prompts
from console.node.target import SudoMode
from console.text import Secret

PROBE_TIMEOUT = 30.0
"""Seconds. PAM may ask a directory server."""


class How(Enum):
    ROOT = "the login is root"
    FREE = "sudo without a password"
    PASSWORD = "sudo with a password"  # noqa: S105


@dataclass(frozen=True, slots=True)
class Elevation:
    """How to become root; `password` only for `How.PASSWORD`."""

    how: How
    password: Secret | None = None

    def argv(self, argv: Argv) -> Argv:
        """`argv` as a command that runs as root."""
        match self.how:
            case How.ROOT:
                return argv
            case How.FREE:
                return ("sudo", "-n", "--", *argv)
            case How.PASSWORD:
                return ("sudo", "-k", "-S", "-p", "", "--", "env", "--", *argv)

    def stdin(self, input: bytes) -> bytes:
        """What must stand on stdin for `argv` to find `input` there."""
        return input if self.password is None else self.password.reveal().encode() + b"\n" + input


ROOT = Elevation(How.ROOT)
Run = Callable[[Argv, bytes, float], Awaitable[Result]]
"""Runs an argv as the login user with the given stdin, which then ends, and a time limit in seconds."""


class Sudo:
    """Finds out once per session how to become root; a denial is remembered too, so that nobody is asked three times."""

    def __init__(
        self, run: Run, *, node: str, login: str, is_root: bool, mode: SudoMode, prompts: Prompts | None
    ) -> None:
        self._run = run
        self._node = node
        self._login = login
        self._mode = mode
        self._prompts = prompts
        self._lock = asyncio.Lock()
        self._answer: Elevation | Denied | None = ROOT if is_root else None

    async def elevation(self) -> Elevation | Denied | Lost:
        """How to become root, or why not. `Lost` means that it could not be found out now."""
        async with self._lock:
            if self._answer is not None:
                return self._answer
            found = await self._find()
            if not isinstance(found, Lost):
                self._answer = found
            return found

    async def _find(self) -> Elevation | Denied | Lost:
        if self._mode == "never":
            return Denied(f"{self._login} on {self._node} is not root, and the nodes file says sudo: never")
        match await self._run(("sudo", "-n", "--", "true"), b"", PROBE_TIMEOUT):
            case Done(code=0):
                return Elevation(How.FREE)
            case Done(code=127):
                return Denied(f"there is no sudo on {self._node}; log in as root")
            case Done():
                return await self._ask()
            case Lost(reason=reason):
                return Lost(sent=False, reason=reason)
            case Denied() as denied:
                return denied

    async def _ask(self) -> Elevation | Denied | Lost:
        if self._prompts is None:
            return Denied(
                f"sudo on {self._node} wants a password of {self._login} and there is nobody to ask; "
                f"log in as root, or allow {self._login} sudo without a password"
            )
        question = f"password of {self._login} for sudo on {self._node}"
        for text in (question, f"that was not it; {question}, once more"):
            password = await self._prompts.password(text)
            if password is None:
                return Denied(f"no password for sudo on {self._node} was given")
            if "\n" in password.reveal() or "\0" in password.reveal():
                continue
            tried = await self._try(password)
            if tried is not None:
                return tried
        return Denied(f"sudo on {self._node} took neither of two passwords of {self._login}")

    async def _try(self, password: Secret) -> Elevation | Denied | Lost | None:
        """None when the password was wrong. `cat` shows whether sudo read the line: what it did not read comes out."""
        chance = Elevation(How.PASSWORD, password)
        match await self._run(chance.argv(("cat",)), chance.stdin(b""), PROBE_TIMEOUT):
            case Done(code=0, out=""):
                return chance
            case Done(code=0):
                return Denied(f"sudo on {self._node} runs {self._login}'s commands neither with nor without a password")
            case Done():
                return None
            case Lost(reason=reason):
                return Lost(sent=False, reason=reason)
            case Denied() as denied:
                return denied
