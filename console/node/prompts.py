"""What a node session may ask a person. A front end implements `Prompts`; without one (None) every question is refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from console.text import Secret


@dataclass(frozen=True, slots=True)
class UnknownHost:
    """A host key seen for the first time. Only *unknown* keys are ever asked about, never changed or revoked ones."""

    node: str
    host: str
    """As it is looked up in known_hosts: the name or its HostKeyAlias."""
    port: int
    algorithm: str
    """For instance `ssh-ed25519`."""
    fingerprint: str
    """`SHA256:…`, as `ssh-keygen -lf` prints it."""
    stored_in: str
    """The file that will hold the key when the answer is yes."""


class Prompts(Protocol):
    async def accept_host(self, question: UnknownHost) -> bool:
        """True only when a person compared the fingerprint and agreed."""

    async def password(self, question: str) -> Secret | None:
        """A password typed without echo; None when the person declines."""
