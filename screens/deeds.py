"""What an operator does to a node by keys: asked first where it destroys, started, and recorded so that it can be saved.

A saved script does the same headless: `relaunch --node N --profile P --script FILE`. The first frame comes before anything is
done, so scripts, profiles and the engine are imported when a deed needs them.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from console.deploy.steps import ORDER
from console.deploy.store import state_folder
from console.errors import RelaunchError, UsageError
from console.live import Glance
from console.settings import config_folder
from console.text import clean
from console.verbs import VERBS

if TYPE_CHECKING:
    from console.deploy.fix import ProfileEdit
    from screens.app import ConsoleApp


@dataclass(frozen=True, slots=True)
class Deed:
    """One script run: its name, and whether known remedies are to be applied, an unfinished run to be taken up, or nothing
    to be changed. `release` is the number that a rollback goes to; empty for the one before."""

    script: str
    fix: bool = False
    dry_run: bool = False
    resume: bool = False
    release: str = ""

    @property
    def words(self) -> str:
        """What is done, as a title says it."""
        return (
            f"{self.script}{f' to release {self.release}' if self.release else ''}{' with the fix' if self.fix else ''}"
        )

    def items(self) -> tuple[str, ...]:
        """The lines of a script file that do the same. A script that is called as a step is stands there in full."""
        from console.deploy.script import SHIPPED, shipped

        if self.script in ORDER and self.script in shipped():
            text = (SHIPPED / f"{self.script}.yaml").read_text()
            return tuple(line for line in text.splitlines() if line.startswith("- "))
        return (f"- {self.script}{f': {{release: {self.release}}}' if self.release else ''}",)

    @property
    def destructive(self) -> bool:
        """True for what asks first: destructive verbs, and whatever is none of the harmless scripts."""
        if self.dry_run:
            return False
        known = next((verb for verb in VERBS if verb.name == self.script or verb.script == self.script), None)
        return self.fix or known is None or known.destructive

    @property
    def mutates(self) -> bool:
        known = next((verb for verb in VERBS if verb.name == self.script or verb.script == self.script), None)
        return not self.dry_run and (known is None or known.mutates)


@dataclass(slots=True)
class Deeds:
    """What was done since the console was opened, in order."""

    done: list[Deed] = field(default_factory=list)

    def add(self, deed: Deed) -> None:
        if not deed.dry_run:
            self.done.append(deed)

    def _meant(self) -> list[Deed]:
        """What was done, without a redeploy that the next one did over again, as after a failure."""
        after = (*self.done[1:], None)
        return [
            deed
            for deed, then in zip(self.done, after, strict=True)
            if then is None or (deed.script, then.script) != ("redeploy", "redeploy")
        ]

    def script(self, glance: Glance, *, when: float, path: str) -> str:
        """The script file that does the same. Raises UsageError while nothing was done."""
        from console.deploy.script import parse_script

        if not self.done:
            raise UsageError("nothing was done yet, so there is nothing to save", "D redeploys, B rolls back")
        where = "--rehearse" if glance.rehearsal else f"--node {glance.node}"
        profile = f" --profile {glance.profile.name}" if glance.profile and not glance.rehearsal else ""
        fix = " --fix" if any(deed.fix for deed in self.done) else ""
        stamp = time.strftime("%Y-%m-%d %H:%M", time.localtime(when))
        lines = [
            f"# What was done by keys in the console on {clean(glance.node) or 'no node'}, {stamp}.",
            f"# relaunch {where}{profile}{fix} --script {path}",
            *(item for deed in self._meant() for item in deed.items()),
        ]
        text = "\n".join(lines) + "\n"
        parse_script(text, path)
        return text


def save(app: ConsoleApp, name: str, *, replace: bool = False) -> Path:
    """Write what was done as a script; a plain NAME goes to $XDG_CONFIG_HOME/relaunch/scripts. Raises RelaunchError."""
    path = Path(name).expanduser() if "/" in name or name.endswith(".yaml") else _scripts() / f"{name}.yaml"
    text = app.deeds.script(app.source.glance(), when=app.moment().wall, path=str(path))
    if path.exists() and not replace:
        raise UsageError(f"{path} exists", f":save! {name} replaces it")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    except OSError as error:
        raise RelaunchError(f"{path} cannot be written: {error.strerror}") from error
    return path


def _scripts() -> Path:
    return config_folder(os.environ) / "scripts"


def begin(app: ConsoleApp, deed: Deed) -> None:
    """Start a deed, after asking where it destroys; on a node marked production the node's name is typed."""
    from screens.dialogs import destroying

    glance = app.source.glance()
    if deed.mutates and app.read_only:
        app.say("this console is read-only; leave it and open it without --read-only", "warning")
    elif glance.running:
        app.say(f"run {glance.run.run} is still going; i interrupts it", "warning")
    elif glance.facts is None and not glance.link.up:
        app.say(
            f"{glance.node or 'the node'} is not reached: {glance.link.reason or 'the link line says why'}", "warning"
        )
    elif deed.destructive or (deed.mutates and app.production):
        said = lacked(app) if deed.script == "redeploy" and not deed.fix else ""
        app.push_screen(
            destroying(deed, glance, production=app.production, edits=remedies(app) if deed.fix else (), lacks=said),
            lambda agreed: _start(app, deed) if agreed else None,
        )
    else:
        _start(app, deed)


def _start(app: ConsoleApp, deed: Deed) -> None:
    from console.deploy.script import load_script
    from console.engine import RunOptions
    from console.session import hub_token
    from screens.dialogs import typed

    async def confirm(question: str, word: str) -> bool:
        agreed = await app.answer(lambda: typed("Confirm", question, word))
        return agreed is True

    glance = app.source.glance()
    options = RunOptions(
        dry_run=deed.dry_run,
        fix=deed.fix,
        resume=deed.resume,
        release=deed.release,
        rehearsal=glance.rehearsal,
        confirm=confirm,
        token=hub_token(os.environ),
        evidence=state_folder() / "evidence",
    )
    try:
        app.source.start(load_script(deed.script), options)
    except RelaunchError as error:
        app.say(f"{error.message}{'; ' + error.remedy if error.remedy else ''}", "error")
        return
    app.deeds.add(deed)
    app.say(f"{deed.words} begins")


def remedies(app: ConsoleApp) -> tuple[ProfileEdit, ...]:
    """What F changes in the profile: what the failed run in hand, else the last launch of this node and profile, was mended
    with or died without, as far as it fits the profile as it is now."""
    from console.deploy.fix import edits_again
    from console.deploy.remedy import last_launch

    glance = app.source.glance()
    if glance.profile is None:
        return ()
    if glance.run.proposed is not None:
        return edits_again(glance.profile, glance.run.remedies)
    last = last_launch(app.source.store, glance.node, glance.profile.name)
    return () if last is None else edits_again(glance.profile, last.remedies(found=True))


def lacked(app: ConsoleApp) -> str:
    """What the profile lacks that the last launch came up with, in words; empty when it lacks nothing."""
    from console.deploy.fix import edits_again
    from console.deploy.remedy import last_launch

    glance = app.source.glance()
    last = None if glance.profile is None else last_launch(app.source.store, glance.node, glance.profile.name)
    if last is None or not last.good or glance.profile is None:
        return ""
    edits = edits_again(glance.profile, last.applied)
    return (
        f"Run {last.run} came up with a remedy that the profile lacks ({edits[0].text}); :fix keeps it."
        if edits
        else ""
    )


def up_units(glance: Glance) -> tuple[str, ...]:
    """The units of the profile, its own and those it replaces, that run by the facts in hand."""
    facts, profile = glance.facts, glance.profile
    if facts is None or profile is None:
        return ()
    known = (facts.units.get(name) for name in dict.fromkeys((profile.service.unit, *profile.replaces)))
    return tuple(
        unit.name for unit in known if unit is not None and unit.active in ("active", "activating", "reloading")
    )
