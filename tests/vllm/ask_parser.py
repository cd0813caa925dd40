"""What the installed vLLM's own parser object accepts, as JSON: run with the Python of the real vLLM's environment."""

from __future__ import annotations

import json
from argparse import BooleanOptionalAction

from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

if __name__ == "__main__":
    flags = {}
    for action in make_arg_parser(FlexibleArgumentParser(prog="vllm serve"))._actions:
        about = {
            "switch": action.nargs == 0 or isinstance(action, BooleanOptionalAction),
            "choices": [str(choice) for choice in action.choices or ()],
        }
        flags.update((option[2:], about) for option in action.option_strings if option.startswith("--"))
    print(json.dumps(flags))
