"""What the command line does beside runs: a lock removed, a run's page written. Each asks or tells in a dialog.

An errand that waits for the node runs through `ConsoleApp.later`, never in a screen.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from console.deploy.store import state_folder
from console.errors import UsageError
from screens.dialogs import choice, unlocking

if TYPE_CHECKING:
    from screens.app import ConsoleApp


async def unlock(app: ConsoleApp) -> None:
    """Show whose the lock of the node is, ask, remove it. Raises RelaunchError."""
    if app.read_only:
        app.say("this console is read-only; leave it and open it without --read-only", "warning")
        return
    await app.source.look()
    glance = app.source.glance()
    owner, node = glance.lock, glance.node or "the node"
    if glance.facts is None:
        app.say(f"{node} is not reached, so nobody knows whether it is locked", "warning")
    elif owner is None:
        app.say(f"{node} is not locked")
    elif glance.running:
        app.say(f"the lock is that of run {glance.run.run}, which goes on here; i interrupts it", "warning")
    elif await app.answer(lambda: unlocking(owner, glance, production=app.production)):
        gone = await app.source.unlock(owner)
        app.say("the lock is removed" if gone else "the lock had changed hands meanwhile; left as it is")
    else:
        app.say("left as it is")


async def report(app: ConsoleApp, wanted: str) -> None:
    """Write one run as a page, the newest when none is named, and tell where it is. Raises RelaunchError."""
    from console.deploy.report import write_report

    store = app.source.store
    if not wanted:
        newest = store.runs(limit=1)
        if not newest:
            raise UsageError("there is no run yet, so there is nothing to report", "D redeploys, p makes a plan")
        wanted = app.source.glance().run.run or newest[0].id
    row = store.run(wanted)
    folder = state_folder() / "reports"
    folder.mkdir(mode=0o700, exist_ok=True)
    path = write_report(store, row, state_folder() / "evidence" / row.id, folder / f"relaunch-{row.id}.html")
    text = f"{path}\n\nA page that stands alone: checklist, cause, log, GPU memory, load test, versions. Open it in any browser."
    taken = await app.answer(lambda: choice(f"Run {row.id} as a page", text, ("Close", "Copy the path")))
    if taken == 1:
        await _copy(app, path)


async def _copy(app: ConsoleApp, path: Path) -> None:
    from screens.clipboard import copy

    done = await copy(str(path), os.environ, app.copy_to_clipboard, "the path")
    app.say(done.words, "error" if done.how == "failed" else "info")
