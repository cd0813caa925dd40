"""What is on a node after a run: a numbered release, the pointer to the last good one, and whether it serves right now.

On the node, under Relaunch's state folder: `releases/N.json` (everything below), `releases/N/UNIT` (the unit text as a
file, for a person with nothing but a shell) and `last-good` (the number). Each is replaced atomically. Reading is pure:
all of it comes from `Facts.files`, for which a run asks `question(profile)`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from console.deploy import deadman
from console.errors import RelaunchError, Unreachable
from console.events import Measured, Noted, decode, encode
from console.node.base import Node, succeeded
from console.node.facts import Facts, Question, UnitState
from console.text import headline

if TYPE_CHECKING:
    from console.deploy.step import Context
    from console.profile.model import Profile

State = Literal["candidate", "good", "failed"]

FORMAT = 1
KEEP_COUNT = 5
"""Releases kept beside the last good one; a release is some kilobytes, its venv and weights are not removed here."""

RELEASE_FILES = "state:/releases/*.json"
LAST_GOOD_FILE = "state:/last-good"


@dataclass(frozen=True, slots=True)
class Release:
    """One deployment. Paths are absolute paths on the node; environment variables are kept by name only."""

    number: int
    run: str
    state: State
    created: float
    """UNIX seconds, by the node's clock."""
    profile: str
    profile_sha256: str
    unit: str
    unit_text: str
    served_name: str
    port: int
    model_folder: str
    revision: str
    venv: str
    vllm: str
    model_path: str = ""
    """What the server was pointed at: the overlay, or the download itself."""
    overlay: Mapping[str, str] = field(default_factory=dict)
    """sha256 of each rewritten file that the server reads, by absolute path: in the overlays of the model and of a draft
    model, or in the download where it was edited in place. Empty when nothing was rewritten."""
    environment: tuple[str, ...] = ()
    replaces: tuple[str, ...] = ()
    stopped: tuple[str, ...] = ()
    """Units that served before and were stopped for this release."""
    disabled: tuple[str, ...] = ()
    """Units that `keep` took out of the boot, for a rollback to put back."""
    former: int | None = None
    """Number of the release that was last good before this one."""
    downtime_started: float | None = None
    """UNIX seconds at which what served before was told to stop."""
    invocation: str = ""
    """systemd's id of the very start that passed the gates."""
    baseline: tuple[Measured, ...] = ()

    @property
    def unit_sha256(self) -> str:
        return sha256(self.unit_text)


def sha256(text: str) -> str:
    """Of the very bytes: what is no UTF-8 stands as surrogates in a fact."""
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()


def question(profile: Profile) -> Question:
    """What the steps launch, ready, throughput and keep, and the lock, want to know of a node."""
    return Question(
        units=(profile.service.unit, *profile.replaces),
        ports=(profile.service.port,),
        read=(RELEASE_FILES, LAST_GOOD_FILE, "state:/lock.json", "state:/former/*", *deadman.READ),
    )


# ---------------------------------------------------------------------------------------------------------------- text


def encode_release(release: Release) -> bytes:
    """The bytes of `releases/N.json`: stable, so that a re-read can be compared byte for byte."""
    data = {f.name: getattr(release, f.name) for f in dataclasses.fields(release)}
    data["overlay"] = dict(release.overlay)
    data["baseline"] = [encode(point) for point in release.baseline]
    body = {"format": FORMAT, **data, "unit_sha256": release.unit_sha256}
    return json.dumps(body, indent=1, sort_keys=True, ensure_ascii=False).encode() + b"\n"


def decode_release(text: str) -> Release | None:
    """The release in `text`; None when it is not one, is cut off, or its unit text does not match its own hash."""
    try:
        data = json.loads(text)
        known = {f.name for f in dataclasses.fields(Release)}
        values: dict[str, Any] = {name: value for name, value in data.items() if name in known}
        for name in ("environment", "replaces", "stopped", "disabled"):
            values[name] = tuple(str(item) for item in values.get(name, ()))
        points = tuple(decode(point) for point in values.get("baseline", ()))
        values["baseline"] = tuple(point for point in points if isinstance(point, Measured))
        values["number"] = int(values["number"])
        release = Release(**values)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return release if data.get("unit_sha256") == release.unit_sha256 else None


# ------------------------------------------------------------------------------------------------------------- reading


def releases(facts: Facts) -> tuple[Release, ...]:
    """Every readable release on the node, by number."""
    shape = re.compile(re.escape(facts.path("state:/releases")) + r"/(\d+)\.json")
    found = [
        release
        for path, text in facts.files.items()
        if (match := shape.fullmatch(path)) and (release := decode_release(text)) and release.number == int(match[1])
    ]
    return tuple(sorted(found, key=lambda release: release.number))


def last_good(facts: Facts) -> Release | None:
    """The release that `last-good` points at, or None: never deployed, or its files cannot be read."""
    text = facts.files.get(facts.path(LAST_GOOD_FILE), "").strip()
    if not text.isascii() or not text.isdigit():
        return None
    return next((release for release in releases(facts) if release.number == int(text)), None)


def next_number(facts: Facts) -> int:
    """One more than the highest number in use, readable or not, so that nothing is ever written over."""
    shape = re.compile(re.escape(facts.path("state:/releases")) + r"/(\d+)\.json")
    used = [int(match[1]) for path in facts.files if (match := shape.match(path))]
    return max(used, default=0) + 1


def surplus(facts: Facts, keep: int = KEEP_COUNT) -> tuple[Release, ...]:
    """Releases that retention may remove: all but the newest `keep`, never the last good one, the one before it, nor
    any whose unit runs right now."""
    good = last_good(facts)
    held = {good.number, good.former} if good else set()
    everything = releases(facts)
    old = everything[: max(0, len(everything) - keep)]
    return tuple(release for release in old if release.number not in held and not _runs(facts, release))


def _runs(facts: Facts, release: Release) -> bool:
    unit = facts.units.get(release.unit)
    return unit is not None and running(unit) and unit.text == release.unit_text


def running(unit: UnitState) -> bool:
    """The unit has, or is about to have, processes."""
    return unit.active in ("active", "activating", "reloading", "deactivating")


# ------------------------------------------------------------------------------------------------------- what is wanted


def wanted_text(ctx: Context) -> str:
    """The unit text that the profile asks for on this node; pure, from the facts."""
    from console.checkpoint.patch import planned  # heavy for those who only read releases
    from console.deploy.unit import unit_text

    return unit_text(ctx.profile, ctx.facts, planned(ctx))


def adoptable(ctx: Context) -> bool:
    """Our unit runs, or is starting, exactly the wanted text: whoever started it, nothing is gained by a restart.

    A unit that is going down, waits to be started again after a crash, whose file changed since it was loaded or since its
    process began, or that answered nonsense or nothing when it was asked (`ctx.found["serving"]`) is not.
    """
    unit = ctx.facts.units.get(ctx.profile.service.unit)
    if ctx.found.get("serving") is False or unit is None or unit.active not in ("active", "activating"):
        return False
    if unit.sub == "auto-restart" or unit.need_reload or unit.stale:
        return False
    return bool(unit.invocation) and unit.text == wanted_text(ctx)


def already_serving(ctx: Context) -> bool:
    """What the profile asks for is what serves: the unit is active with exactly the wanted text, that text is the last
    good release, and this is the very start that passed the gates, so that a process restarted since is noticed.

    Pure, from the facts. `ctx.found["serving"] = False` (a live look that failed, `ready.probe`) overrules it.
    """
    if not adoptable(ctx):
        return False
    unit = ctx.facts.units[ctx.profile.service.unit]
    good = last_good(ctx.facts)
    return (
        good is not None
        and unit.active == "active"
        and good.unit == unit.name
        and good.unit_text == unit.text
        and good.invocation == unit.invocation
        and not _overlay_moved(ctx.facts, good)
    )


def _overlay_moved(facts: Facts, release: Release) -> bool:
    """A rewritten file is not what it was when the server read it."""
    return any(path in facts.files and sha256(facts.files[path]) != digest for path, digest in release.overlay.items())


# ------------------------------------------------------------------------------------------------------------- writing


def draft(ctx: Context, number: int, *, stopped: tuple[str, ...] = ()) -> Release:
    """The release that this run is about to make, as candidate."""
    from console.checkpoint.patch import planned

    profile, facts = ctx.profile, ctx.facts
    good = last_good(facts)
    outcome = planned(ctx)
    body = json.dumps(profile.model_dump(mode="json"), sort_keys=True)
    return Release(
        number=number,
        run=ctx.run,
        state="candidate",
        created=facts.clock,
        profile=profile.name,
        profile_sha256=sha256(body),
        unit=profile.service.unit,
        unit_text=wanted_text(ctx),
        served_name=profile.model.served_name,
        port=profile.service.port,
        model_folder=facts.path(profile.model.folder),
        revision=profile.model.revision,
        venv=facts.path(profile.vllm.venv),
        vllm=profile.vllm.version,
        model_path=outcome.model_path,
        overlay=dict(outcome.rewritten),
        environment=tuple(sorted(profile.environment)),
        replaces=profile.replaces,
        stopped=stopped,
        former=good.number if good else None,
        downtime_started=ctx.found.get("downtime_started"),
    )


def candidate(ctx: Context) -> Release | None:
    """The newest release of this very text that was started and is not the last good one yet: what a resumed run goes on
    with. It may be written as good already, by a console that died in the middle of `keep`; then it is the one that runs.
    """
    text, ours, good = wanted_text(ctx), ctx.profile.service.unit, last_good(ctx.facts)
    unit = ctx.facts.units.get(ours)
    runs = unit.invocation if unit is not None and running(unit) else ""  # systemd remembers it of a stopped one, too
    fresh = [
        r
        for r in releases(ctx.facts)
        if r.unit == ours
        and r.unit_text == text
        and (r.state == "candidate" or (r.state == "good" and r != good and r.invocation and r.invocation == runs))
    ]
    return fresh[-1] if fresh else None


def release_file(facts: Facts, number: int) -> str:
    return facts.path(f"state:/releases/{number}.json")


def release_folder(facts: Facts, number: int) -> str:
    return facts.path(f"state:/releases/{number}")


async def write_release(node: Node, facts: Facts, release: Release) -> str:
    """Write the release; the path of its JSON file, which is written last, so that it stands for all of it. Raises what
    `Node.write` raises."""
    place = release_folder(facts, release.number)
    make = ("mkdir", "-p", "-m", "0755", "--", facts.paths.state, facts.path("state:/releases"), place)
    succeeded(await node.run(make, timeout=30, sudo=True), make)
    await node.write(f"{place}/{release.unit}", release.unit_text.encode(), mode=0o644, sudo=True)
    path = release_file(facts, release.number)
    await node.write(path, encode_release(release), mode=0o644, sudo=True)
    return path


async def point_last_good(node: Node, facts: Facts, number: int) -> None:
    """Make `number` the last good release."""
    await node.write(facts.path(LAST_GOOD_FILE), f"{number}\n".encode(), mode=0o644, sudo=True)


async def mark_failed(ctx: Context, release: Release) -> None:
    """Write the release again as a failed one."""
    with in_passing(ctx):
        await write_release(ctx.node, ctx.facts, replace(release, state="failed"))


@contextmanager
def in_passing(ctx: Context) -> Iterator[None]:
    """What a way back writes down for later must not stop it, on a full disk for instance: that it failed is told."""
    try:
        yield
    except Unreachable:
        raise
    except RelaunchError as error:
        ctx.emit(Noted(time=time.time(), text=f"this could not be written down: {headline(error.message)}"))


async def restore(ctx: Context, release: Release | None = None) -> str:
    """Bring back what served before this run and prove that it serves; the proof in words. `release` None: the last
    good one, else the units that the profile replaces. Raises RollbackFailed. See `console.deploy.rollback`."""
    from console.deploy import rollback  # the way back is made of steps, and the steps need this module

    return await rollback.restore(ctx, release)


async def serves_again(ctx: Context) -> str:
    """After a failed run: what served before it serves again. The proof in words; raises RollbackFailed."""
    return await restore(ctx)


async def restore_release(ctx: Context) -> str:
    """The verb `rollback`: from what serves now to the release before it. Raises Refused when there is none."""
    from console.deploy import rollback

    return await rollback.restore_release(ctx)
