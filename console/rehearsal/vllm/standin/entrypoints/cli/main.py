# ruff: noqa: TID252 - this package is installed under another name
"""The `vllm` command: `serve`, `bench serve`, `--version`."""

from __future__ import annotations

import os
import sys

from ..._version import ROOT, __version__
from ...faults import active, first_value
from ...flags import FlexibleArgumentParser, help_word, make_serve_parser, show_help
from ...gpu_state import NODE_ROOT, ROOT_VARIABLE, practice_root
from ...versions import traits

_COMMANDS = "{chat,complete,serve,bench,collect-env,run-batch}"


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    args = list(sys.argv[1:] if argv is None else argv)
    if ROOT and not os.environ.get(ROOT_VARIABLE) and os.path.isdir(ROOT) and not os.path.isdir(NODE_ROOT):
        os.environ[ROOT_VARIABLE] = ROOT
    if args[:1] in (["-v"], ["--version"]):
        print(__version__)
        return 0
    if args[:1] == ["serve"]:
        return _serve(args[1:])
    if args[:2] == ["bench", "serve"]:
        from ...bench import main as bench

        return bench(args[2:])
    top = FlexibleArgumentParser(prog="vllm", usage=f"vllm [-h] [-v] {_COMMANDS} ...", description="vLLM CLI")
    if not args or help_word(args[:1]) is not None:
        top.print_help()
        return 0
    return top.error(
        f"argument subparser: invalid choice: {args[0]!r} (choose from 'chat', 'complete', 'serve', 'bench', 'collect-env', 'run-batch')"
    )


def _serve(args: list[str], prog: str = "vllm serve") -> int:
    what = traits(__version__)
    parser = make_serve_parser(what, prog)
    word = help_word(args)
    if word is not None:
        show_help(parser, word, "serve")
    known, unknown = parser.parse_known_args(args)
    if "bad-flag" in active(practice_root()) and not what.at_least(0, 30):
        unknown = unknown or _victim(args)
    if unknown and prog != "vllm serve":
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    if unknown:
        # the sub-command's parser hands what it does not know to the top one, which complains under its own name
        top = FlexibleArgumentParser(prog=prog.split()[0], usage=f"vllm [-h] [-v] {_COMMANDS} ...")
        top.error(f"unrecognized arguments: {' '.join(unknown)}")
    from ...serve import serve

    return serve(known, parser, what)


_VICTIMS = ("--max-num-batched-tokens", "--max-num-seqs", "--reasoning-parser", "--tool-call-parser", "--max-model-len")


def _victim(args: list[str]) -> list[str]:
    """The flag that the fault `bad-flag` does not know, with its value: one that a server can do without. It stays that
    one, so that dropping it helps."""
    given = [arg.partition("=")[0].replace("_", "-") for arg in args]
    wanted = next((name for name in _VICTIMS if name in given), "--disable-log-requests")
    name = str(first_value(practice_root(), "bad-flag", wanted))
    if name not in given:
        return [name] if name == "--disable-log-requests" else []
    place = given.index(name)
    takes = "=" not in args[place] and place + 1 < len(args) and not args[place + 1].startswith("-")
    return args[place : place + (2 if takes else 1)]


if __name__ == "__main__":
    sys.exit(main())
