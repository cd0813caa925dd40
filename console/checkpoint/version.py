"""vLLM versions as far as decisions need them: numbers, and whether it is a pre-release. Pure, stdlib only."""

from __future__ import annotations

import re
from dataclasses import dataclass

from console.errors import UsageError

_VERSION = re.compile(
    r"v?(?P<release>\d+(?:\.\d+)*)(?P<pre>[-_.]?(?:a|b|rc|alpha|beta|dev|nightly)[-_.]?\d*(?:\.dev\d+)?)?"
    r"(?:\.post\d+)?(?:\+[\w.]+)?\s*$",
    re.IGNORECASE,
)
_BOUND = re.compile(r"(>=|<=|<|>|==)\s*(\d+(?:\.\d+)*)(\.dev)?$")


@dataclass(frozen=True, slots=True)
class Version:
    """`0.16.0rc2.dev313+g1a2b` is release (0, 16, 0), a pre-release."""

    release: tuple[int, ...]
    pre: bool
    text: str

    @property
    def minor(self) -> tuple[int, int]:
        """(major, minor), which is what the tables are by."""
        major, minor, *_ = (*self.release, 0, 0)
        return major, minor


def parse_version(text: str) -> Version:
    """The version in `text`; raises `UsageError` when there is none."""
    match = _VERSION.match(text.strip())
    if match is None:
        raise UsageError(f"{text!r} is no vLLM version", "Write one like 0.16.0 or 0.16.0rc2.dev313+g1a2b3c4.")
    return Version(tuple(int(part) for part in match["release"].split(".")), match["pre"] is not None, text.strip())


def within(version: Version, bounds: tuple[str, ...]) -> bool:
    """Whether `version` keeps every bound. A pre-release counts as older than a bound on its own release, since it may
    lack what the release brought, unless the bound ends in `.dev`."""
    return all(_keeps(version, bound) for bound in bounds)


def _keeps(version: Version, bound: str) -> bool:
    match = _BOUND.match(bound.strip())
    if match is None:
        raise UsageError(f"{bound!r} is no version bound", 'Write one like ">=0.18" or "<0.14.dev".')
    operator, number, dev = match.groups()
    limit = tuple(int(part) for part in number.split("."))
    size = max(len(limit), len(version.release))
    mine = version.release + (0,) * (size - len(version.release))
    theirs = limit + (0,) * (size - len(limit))
    # a pre-release sorts just before its release; a `.dev` bound sorts before every pre-release of it
    left = (mine, 0 if version.pre else 1)
    right = (theirs, 0 if dev else 1)
    return {
        ">=": left >= right, "<": left < right, "<=": left <= right, ">": left > right, "==": left == right,
    }[operator]  # fmt: skip
