"""The command line of vLLM as an argparse parser: its texts, its exit code 2, its `--help=FLAG`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from .flag_table import FLAGS, Flag
from .kv import kv_cache_dtypes
from .versions import Traits

EPILOG = (
    "For full list:            vllm {command} --help=all\n"
    "For a section:            vllm {command} --help=ModelConfig    (case-insensitive)\n"
    "For a flag:               vllm {command} --help=max-model-len  (_ or - accepted)\n"
    "Documentation:            https://docs.vllm.ai\n"
)


def human_readable_int(value: str) -> int:
    """`1k` is 1000, `1K` 1024, plain numbers as they are."""
    factors = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
    if value and value[-1] in factors:
        return int(float(value[:-1]) * factors[value[-1]])
    return int(value)


def human_readable_int_or_auto(value: str) -> int:
    """-1 and `auto` leave the choice to the server."""
    return -1 if value.lower() == "auto" else human_readable_int(value)


def json_value(value: str) -> object:
    """JSON text; argparse turns the ArgumentTypeError into its own error."""
    try:
        return json.loads(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"Value {value} cannot be converted to {json.loads}.") from None


_TYPES: dict[str, Callable[[str], object]] = {
    "int": int,
    "float": float,
    "str": str,
    "human": human_readable_int,
    "auto": human_readable_int_or_auto,
    "json": json_value,
}


class FlexibleArgumentParser(argparse.ArgumentParser):
    """argparse with vLLM's additions: `--max_model_len` is `--max-model-len`; `--help=WORD` searches."""

    search: str | None = None

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        args = list(sys.argv[1:] if args is None else args)
        return super().parse_known_args([self._dashes(arg) for arg in args], namespace)

    @staticmethod
    def _dashes(arg: str) -> str:
        if not arg.startswith("--"):
            return arg
        name, equals, value = arg.partition("=")
        return "--" + name[2:].replace("_", "-") + equals + value


def add_flags(parser: argparse.ArgumentParser, traits: Traits) -> None:
    """Every flag that this version has, in its group."""
    groups: dict[str, argparse._ArgumentGroup] = {}
    for flag in FLAGS:
        if not flag.exists_in(traits.release):
            continue
        if flag.group not in groups:
            groups[flag.group] = parser.add_argument_group(flag.group)
        _add(groups[flag.group], flag, traits)


def _add(group: argparse._ArgumentGroup, flag: Flag, traits: Traits) -> None:
    names = [flag.name] + ([flag.short] if flag.short else [])
    default = traits.default_utilization if flag.name == "--gpu-memory-utilization" else flag.default
    text = f"{flag.help} (default: {default})".replace("%", "%%")
    if flag.kind == "bool":
        group.add_argument(*names, action=argparse.BooleanOptionalAction, default=default, help=text)
    elif flag.kind == "switch":
        group.add_argument(*names, action="store_true", default=default, help=text)
    elif flag.kind == "append":
        group.add_argument(*names, action="append", default=default, help=text)
    elif flag.kind == "list":
        group.add_argument(*names, nargs="+", default=default, help=text)
    else:
        choices = kv_cache_dtypes(traits.release) if flag.choices == ("kv",) else flag.choices
        group.add_argument(*names, type=_TYPES[flag.kind], default=default, choices=choices or None, help=text)


def make_serve_parser(traits: Traits, prog: str = "vllm serve") -> FlexibleArgumentParser:
    """The parser of `vllm serve`."""
    parser = FlexibleArgumentParser(
        prog=prog,
        usage=f"{prog} [model_tag] [options]",
        description="Launch a local OpenAI-compatible API server to serve LLM completions via HTTP. Defaults to "
        "Qwen/Qwen3-0.6B if no model is specified.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("model_tag", nargs="?", default=None, help="The model tag to serve (optional if specified)")
    add_flags(parser, traits)
    return parser


def non_default(args: argparse.Namespace, parser: argparse.ArgumentParser) -> dict[str, object]:
    """What the log calls `non-default args`."""
    found: dict[str, object] = {}
    for action in parser._actions:
        value = getattr(args, action.dest, None)
        if action.dest != "help" and value != action.default:
            found[action.dest] = value
    if args.model_tag is not None:
        found["model"] = args.model_tag
    return found


def help_word(argv: Sequence[str]) -> str | None:
    """The word of `--help=WORD`, an empty string for a plain `--help`, None when no help is asked."""
    for arg in argv:
        if arg in ("-h", "--help"):
            return ""
        if arg.startswith("--help="):
            return arg.partition("=")[2]
    return None


def show_help(parser: argparse.ArgumentParser, word: str, command: str) -> NoReturn:
    """Print what vLLM prints for `--help` and `--help=WORD`, and leave."""
    wanted = word.strip().lower().replace("_", "-").lstrip("-")
    groups = [group for group in parser._action_groups if group._group_actions]
    if not wanted or wanted == "listgroup":
        print(f"usage: {parser.usage}\n\n{parser.description}\n\nConfig Groups:")
        for group in groups:
            print(f"  {group.title}")
        print("\n" + EPILOG.format(command=command), end="")
        sys.exit(0)
    if wanted == "all":
        parser.print_help()
        print("\n" + EPILOG.format(command=command), end="")
        sys.exit(0)
    for group in groups:
        if (group.title or "").lower() == wanted:
            _print_actions(parser, f"{group.title}:", list(group._group_actions))
            sys.exit(0)
    matches = [
        action for action in parser._actions if any(wanted in option.lower() for option in action.option_strings)
    ]
    if matches:
        _print_actions(parser, f"Parameters matching '{word}':\n", matches)
        sys.exit(0)
    print(f"\nNo group or parameter matching '{word}'")
    print("Tip: use `--help=listgroup` to view all groups.")
    sys.exit(1)


def _print_actions(parser: argparse.ArgumentParser, title: str, actions: list[argparse.Action]) -> None:
    formatter = parser._get_formatter()
    formatter.start_section(None)
    formatter.add_arguments(actions)
    formatter.end_section()
    print(f"\n{title}\n{formatter.format_help()}", end="")
