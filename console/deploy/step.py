"""The Step contract: check, apply, verify by measurement, undo.

A step that is interrupted anywhere can be run again, since `check` looks at the node and not at what was written down.
`check` never mutates. `verify` measures the effect and returns evidence in words, or raises an error of
`console.errors` with the diagnosis. `undo` brings back what `apply` changed and must be safe to call at any point.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from console.events import Event
from console.text import Secret

if TYPE_CHECKING:
    from console.node.base import Node
    from console.node.facts import Facts
    from console.profile.model import Profile


@dataclass(frozen=True, slots=True)
class Satisfied:
    """Nothing to do; `evidence` is the measured fact that says so."""

    evidence: str


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that `apply` would do, in words, with a unified diff where it rewrites text."""

    text: str
    diff: str = ""
    size: int | None = None
    """Bytes to transfer or to free, where that is the cost."""


@dataclass(frozen=True, slots=True)
class Needed:
    changes: tuple[Change, ...]


Check: TypeAlias = Satisfied | Needed


@dataclass(slots=True)
class Context:
    """What a step works with. `found` carries results from one step to later ones of the same run, by step name;
    everything in it can be measured again, so that a resumed run starts with an empty one."""

    node: Node
    profile: Profile
    facts: Facts
    emit: Callable[[Event], None]
    confirm: Callable[[str, str], Awaitable[bool]]
    """`confirm(question, word)`: True when the operator agreed by typing `word`; --yes agrees, no terminal declines."""
    refresh: Callable[[], Awaitable[Facts]]
    """Read the node's facts again; also stores them in `facts`."""
    run: str = ""
    token: Secret = field(default_factory=lambda: Secret(""))
    options: Mapping[str, Any] = field(default_factory=dict)
    found: dict[str, Any] = field(default_factory=dict)


class Step(Protocol):
    name: str
    downtime: bool
    """True for a step that stands between the old service's stop and the new one's first sensible generation."""

    async def check(self, ctx: Context) -> Check: ...
    async def apply(self, ctx: Context) -> None: ...
    async def verify(self, ctx: Context) -> str: ...
    async def undo(self, ctx: Context) -> None: ...
