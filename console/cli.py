"""The `relaunch` command: parse arguments, choose a front end, nothing else.

`relaunch --help` and `relaunch diagnose` load none of Textual, asyncssh, aiohttp, huggingface_hub; every other import
waits until its verb is known.
"""

from __future__ import annotations

import argparse
import gc
import os
import re
import sys
from collections.abc import Sequence

from console import __version__
from console.errors import ExitCode, RelaunchError, UsageError
from console.verbs import VERBS

_EPILOG = """\
exit codes: 0 done, or already so - 1 unexpected - 2 usage, profile or script - 3 refused by preflight - 4 unreachable,
authentication or host key - 5 locked by someone - 6 download or integrity - 7 the unit did not start - 8 not ready -
9 generates nonsense - 10 below the throughput gate - 11 failed, what served before is serving again - 12 failed, and the
way back failed too - 130 interrupted (work on the node goes on)

start here: relaunch --rehearse --script redeploy      the whole job on a practice node, nothing is touched
            relaunch --node root@gpu1 --profile kimi-k2.5-nvfp4 plan
"""


_WRONG_CHOICE = re.compile(r"argument (\S+): invalid choice: '(.*)' \(choose from (.*)\)")


class _Parser(argparse.ArgumentParser):
    """argparse, ending with our exit code and one line that says what would be right."""

    def error(self, message: str) -> object:  # type: ignore[override]
        wrong = _WRONG_CHOICE.fullmatch(message)
        if wrong is None:
            raise UsageError(message, f"{self.prog} --help")
        what, word, known = wrong.groups()
        from difflib import get_close_matches

        near = get_close_matches(word, re.findall(r"[\w-]+", known), 1)
        raise UsageError(
            (f"{what}: " if what.startswith("-") else "")
            + f"there is no {word!r}"
            + (f"; did you mean {near[0]}?" if near else ""),
            f"one of {known.replace(chr(39), '')}; {self.prog} --help says what each does",
        )


def _shared() -> _Parser:
    """Options that stand before or after the verb."""
    shared = _Parser(add_help=False, argument_default=argparse.SUPPRESS)
    where = shared.add_argument_group("where and what")
    where.add_argument("--node", metavar="N", help="user@host, an OpenSSH alias, a name of the nodes file, or `local`")
    where.add_argument("--nodes", metavar="FILE", help="nodes file (default: $XDG_CONFIG_HOME/relaunch/nodes.yaml)")
    where.add_argument("--profile", metavar="P", help="profile name or file")
    where.add_argument("--profiles", metavar="DIR", help="folder with further profiles")
    where.add_argument("--rehearse", action="store_true", help="on the practice node of this machine")
    where.add_argument(
        "--fault",
        metavar="NAME[:STEP]",
        action="append",
        help="with --rehearse: make a step fail as it does in the field",
    )
    how = shared.add_argument_group("how")
    how.add_argument("--read-only", action="store_true", help="look, and change nothing on the node")
    how.add_argument("--dry-run", action="store_true", help="say what would change, and change nothing")
    how.add_argument("--yes", action="store_true", help="agree to every confirmation")
    how.add_argument(
        "--fix",
        action="store_true",
        help="apply known remedies: the last failed launch's at once, this one's when it fails",
    )
    how.add_argument("--json", action="store_true", help="one JSON object per line on stdout")
    how.add_argument("--no-color", action="store_true", help="no colour (NO_COLOR does the same)")
    how.add_argument("--ascii", action="store_true", help="the console in ASCII alone")
    how.add_argument("--deep", action="store_true", help="hash every model file again, whatever is remembered of it")
    how.add_argument("--lock-wait", type=float, metavar="S", help="wait S seconds for someone else's run")
    return shared


def build_parser(argv: Sequence[str] | None = None) -> _Parser:
    """The whole command line; with `argv`, the arguments of those verbs alone that stand in it."""
    shared = _shared()
    parser = _Parser(
        prog="relaunch",
        description="Replace the model that serves on a GPU machine you own, verify every step, keep a way back.",
        epilog=_EPILOG,
        parents=[shared],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"relaunch {__version__}")
    parser.add_argument("--script", metavar="NAME|FILE|-", help="run a script headless: redeploy, preflight, bench, …")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", parser_class=_Parser)
    for verb in VERBS:
        if argv is not None and verb.name not in argv:
            verbs.add_parser(verb.name, help=verb.help, add_help=False)
            continue
        sub = verbs.add_parser(verb.name, help=verb.help, description=verb.help, parents=[shared])
        for arg in verb.args:
            sub.add_argument(arg.name, help=arg.help, **arg.extra)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run `relaunch` and return its exit code. Without `argv` it is this very process that ends with it."""
    if argv is not None:
        return _run(argv)
    # Loading makes some hundred thousand objects that stay: looking for garbage among them, at every few hundred new
    # ones and once more at the end, took a quarter of a short run.
    gc.set_threshold(50_000, 20, 20)
    try:
        return _run(sys.argv[1:])
    finally:
        gc.freeze()


def _run(argv: Sequence[str]) -> int:
    try:
        return _dispatch(list(argv))
    except RelaunchError as error:
        print(f"relaunch: {error.message}", file=sys.stderr)
        if error.remedy:
            print(f"  try: {error.remedy}", file=sys.stderr)
        return error.code
    except BrokenPipeError:
        # The reader went away (`| head`); nothing more can be said, and Python must not try at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.DONE
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED


def _dispatch(argv: list[str]) -> int:
    options = build_parser(argv).parse_args(argv)
    if options.verb == "diagnose" and not any(getattr(options, name, None) for name in ("node", "unit", "rehearse")):
        # a log alone needs no store, no settings and no event loop, which take longer to load than most logs to read
        from console.triage import command

        return command.diagnose(
            options.file, as_json=getattr(options, "json", False), rules=getattr(options, "rules", None)
        )
    from console import headless

    if headless.wants_screen(options):
        return headless.open_console(options)
    return headless.run(options)
