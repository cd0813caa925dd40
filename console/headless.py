"""The front end without a screen: run a verb or a script, print events, choose the exit code.

Results go to stdout, progress to stderr. With --json stdout holds one object per line and nothing else. Nothing is asked
without a terminal. SIGINT, SIGTERM and SIGHUP end the console, leave the work on the node running, and say how to come
back to it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys

from console import commands
from console.deploy.store import open_store
from console.errors import ExitCode, UsageError
from console.session import Session
from console.settings import Settings
from console.verbs import verb


def run(options: argparse.Namespace) -> int:
    """Run the verb or script of the command line to its end; the exit code."""
    with open_store() as store:
        session = Session(options, Settings.read(os.environ), store)
        return asyncio.run(_until_signal(session))


def wants_screen(options: argparse.Namespace) -> bool:
    """True without a verb or script, and for a log file that is opened on a terminal without more ado."""
    if options.verb == "logs" and options.file and sys.stdout.isatty():
        return not (options.filter or getattr(options, "json", False))
    return options.verb is None and options.script is None


def open_console(options: argparse.Namespace) -> int:
    """Open the screens, found through the entry-point group `relaunch.frontend`."""
    from importlib.metadata import entry_points

    found = list(entry_points(group="relaunch.frontend"))
    if not found:
        raise UsageError("no console is installed", "install the whole package, or use --script")
    return int(found[0].load()(options))


async def _until_signal(session: Session) -> int:
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(_handler(session)(session))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, task.cancel)
    try:
        return int(await task)
    except asyncio.CancelledError:
        if session.options.script is None and session.given("verb") in ("gpus", "logs"):
            return ExitCode.DONE
        return ExitCode.INTERRUPTED


def _handler(session: Session) -> commands.Handler:
    if session.options.script is not None:
        if session.options.verb is not None:
            raise UsageError("--script and a verb exclude each other", "name one of them")
        return lambda given: commands.run_script(given, session.options.script)
    chosen = verb(session.options.verb)
    if chosen.script:
        return lambda given: commands.run_script(given, chosen.script)
    return commands.HANDLERS[chosen.name]
