"""Runs on the node, and is imported for `parse_help`: what the installed `vllm serve` accepts, by its own help text.

Standard library only, Python 3.6. ASK: {"venv": folder, "timeout": seconds}. Prints one JSON object:
{"flags": {name: {"switch": bool, "choices": [..]}}, "variables": [..] or null} or {"error": text}.
Nothing of vLLM is imported here: the help is asked of the program itself, the variables are read from its source text.
"""

import ast
import glob
import json
import os
import re
import subprocess
import sys
from typing import Any, Dict, List, Optional

ASK = globals().get("ASK", {})  # type: Dict[str, Any]

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# an option stands at the indentation of its group; help texts, which may quote options, stand far to the right
_OPTION = re.compile(r"^ {1,4}(-{1,2}[A-Za-z0-9].*)$")
_NAME = re.compile(r"(?<![\w-])--([A-Za-z0-9][A-Za-z0-9_.-]*)")
_CHOICES = re.compile(r"\{([^{}]*)\}")


def parse_help(text: str) -> Dict[str, Dict[str, Any]]:
    """{flag without dashes: {"switch": takes no value, "choices": [accepted values]}} of an argparse help text."""
    flags = {}  # type: Dict[str, Dict[str, Any]]
    lines = _ANSI.sub("", text).splitlines()
    for index, line in enumerate(lines):
        match = _OPTION.match(line)
        if not match:
            continue
        head = re.split(r"\s{2,}", match.group(1), maxsplit=1)[0]
        # a long list of choices may go on in the next lines
        while head.count("{") > head.count("}") and index + 1 < len(lines):
            index += 1
            head += lines[index].strip()
        names = _NAME.findall(_CHOICES.sub("", head))
        bare = re.sub(r"-{1,2}[A-Za-z0-9][\w.-]*", "", _CHOICES.sub("{}", head)).replace(",", "").strip()
        choices = _CHOICES.search(head)
        values = [value.strip() for value in choices.group(1).split(",")] if choices else []
        for name in names:
            if name.partition(".")[0] == "json-arg":
                continue  # the placeholder in vLLM's closing examples of JSON values
            flags[name.replace("_", "-")] = {"switch": not bare, "choices": [value for value in values if value]}
    return flags


def read_variables(venv: str) -> Optional[List[str]]:
    """Names in `vllm.envs.environment_variables`, from its source; None when that is not there or not as expected."""
    for path in sorted(glob.glob(os.path.join(venv, "lib", "python3*", "site-packages", "vllm", "envs.py"))):
        try:
            with open(path, "rb") as stream:
                tree = ast.parse(stream.read())
        except (OSError, SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            named = any(isinstance(target, ast.Name) and target.id == "environment_variables" for target in targets)
            value = getattr(node, "value", None)
            if named and isinstance(value, ast.Dict):
                keys = [getattr(key, "value", getattr(key, "s", None)) for key in value.keys]
                return sorted(key for key in keys if isinstance(key, str))
    return None


def answer(ask: Dict[str, Any]) -> Dict[str, Any]:
    program = os.path.join(ask["venv"], "bin", "vllm")
    environment = dict(
        os.environ, NO_COLOR="1", COLUMNS="200", VLLM_NO_USAGE_STATS="1", HF_HUB_OFFLINE="1", PAGER="cat"
    )
    try:
        done = subprocess.run(
            [program, "serve", "--help=all"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            timeout=ask["timeout"],
        )
    except OSError as error:
        return {"error": "%s cannot be run: %s" % (program, error.strerror)}
    except subprocess.TimeoutExpired:
        return {"error": "%s serve --help=all gave no answer in %d s" % (program, ask["timeout"])}
    flags = parse_help(done.stdout.decode("utf-8", "replace"))
    if done.returncode != 0 or "tensor-parallel-size" not in flags:
        lines = [line for line in done.stderr.decode("utf-8", "replace").splitlines() if line.strip()]
        last = lines[-1] if lines else "no error text"
        return {"error": "%s serve --help=all ended with code %d: %s" % (program, done.returncode, last)}
    return {"flags": flags, "variables": read_variables(ask["venv"])}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(answer(ASK)) + "\n")
