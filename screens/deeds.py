"""What an operator does to a node by keys: asked first where it destroys, started, and recorded so that it can be saved.

A saved script does the same headless: `relaunch --node N --profile P --script FILE`.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from console.deploy.script import load_script, parse_script
from console.deploy.store import state_folder
from console.errors import RelaunchError, UsageError
from console.live import Glance
from console.session import hub_token
from console.settings import config_folder
from console.text import clean
from console.verbs import VERBS

if TYPE_CHECKING:
    from screens.app import ConsoleApp


@dataclass(frozen=True, slots=True)
class Deed:
    """One script run: its name, and whether the known remedy is to be applied or nothing to be changed."""

    script: str
    fix: bool = False
    dry_run: bool = False

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

    def script(self, glance: Glance, *, when: float, path: str) -> str:
        """The script file that does the same. Raises UsageError while nothing was done."""
        if not self.done:
            raise UsageError("nothing was done yet, so there is nothing to save", "D redeploys, B rolls back")
        where = "--rehearse" if glance.rehearsal else f"--node {glance.node}"
        profile = f" --profile {glance.profile.name}" if glance.profile and not glance.rehearsal else ""
        fix = " --fix" if any(deed.fix for deed in self.done) else ""
        stamp = time.strftime("%Y-%m-%d %H:%M", time.localtime(when))
        lines = [
            f"# What was done by keys in the console on {clean(glance.node) or 'no node'}, {stamp}.",
            f"# relaunch {where}{profile}{fix} --script {path}",
            *(f"- {deed.script}" for deed in self.done),
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
        app.push_screen(
            destroying(deed, glance, production=app.production), lambda agreed: _start(app, deed) if agreed else None
        )
    else:
        _start(app, deed)


def _start(app: ConsoleApp, deed: Deed) -> None:
    from console.engine import RunOptions  # late: with it comes all that runs on nodes
    from screens.dialogs import typed

    async def confirm(question: str, word: str) -> bool:
        agreed = await app.answer(lambda: typed("Confirm", question, word))
        return agreed is True

    glance = app.source.glance()
    options = RunOptions(
        dry_run=deed.dry_run,
        fix=deed.fix,
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
    app.say(f"{deed.script}{' with the fix' if deed.fix else ''} begins")
