"""`relaunch diagnose` and `relaunch catalogue check`: options, input, output, exit code.

Exit codes: 0 the log shows a server that is ready (or the file of rules is sound), 8 it is not, 2 the input cannot be used.
Results go to stdout; nothing is written anywhere else. A file is read forwards in blocks, or backwards when its newest line
stands first.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from console.errors import ExitCode, RelaunchError, UsageError

if TYPE_CHECKING:
    from console.triage.diagnosis import Diagnosis
    from console.triage.rules import Rules

BLOCK: Final = 1 << 19
HEAD: Final = 256 << 10
LARGE: Final = 16 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `relaunch diagnose` that need no node."""
    parser.add_argument(
        "file", nargs="?", default="-", metavar="FILE", help="a vLLM or SGLang log; - or nothing is stdin"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--rules", type=Path, metavar="YAML", help="failures, noise and stages of your own, before ours"
    )


def run(namespace: argparse.Namespace) -> int:
    """`relaunch diagnose` with parsed options."""
    return diagnose(namespace.file, as_json=namespace.json, rules=namespace.rules)


run_diagnose = run


def add_catalogue_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `relaunch catalogue`."""
    verbs = parser.add_subparsers(dest="catalogue_verb", metavar="VERB", required=True)
    check = verbs.add_parser("check", help="lint a file of failures, noise or stages")
    check.add_argument("file", type=Path, metavar="FILE")


def run_catalogue(namespace: argparse.Namespace) -> int:
    """`relaunch catalogue check` with parsed options."""
    return check(namespace.file)


def diagnose(file: str, *, as_json: bool = False, rules: Path | None = None) -> int:
    """Read `file` ("-" is stdin) and print the diagnosis."""
    from console.triage.rules import load_rules

    found = diagnosis_of(file, load_rules(rules))
    if as_json:
        print_line(json.dumps(found.to_json(), ensure_ascii=False))
    else:
        from console.triage.page import answer

        print_line(answer(found, terminal_width()))
    return exit_code(found)


def terminal_width() -> int:
    """Columns of the terminal; 80 where there is none."""
    import shutil

    return shutil.get_terminal_size().columns


def exit_code(found: Diagnosis) -> int:
    """What a diagnosis means to the caller of the process."""
    if found.outcome == "empty":
        return int(ExitCode.USAGE)
    return int(ExitCode.DONE if found.outcome == "ready" else ExitCode.NOT_READY)


def diagnosis_of(file: str, rules: Rules) -> Diagnosis:
    """The diagnosis of a file or of stdin. Raises UsageError when it cannot be read."""
    from console.triage.order import newest_first, read_backwards
    from console.triage.reader import Reader

    try:
        with _opened(file) as stream:
            head = _head(stream)
            if newest_first(head):
                return read_backwards(head, stream, rules)
            long = len(head) == HEAD and processors() > 1
            reader = Reader(rules, ahead=long)
            try:
                reader.feed(head)
                for block in _blocks(stream):
                    reader.feed(block)
                return reader.diagnosis()
            finally:
                reader.close()
    except OSError as error:
        raise UsageError(
            f"{file}: {error.strerror or error}", "name a log file that can be read, or - for stdin"
        ) from error


def processors() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check(file: Path) -> int:
    """Lint a user's file: every problem as file:line:col on stdout."""
    from console.triage import catalogue

    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file}: {error}", "name a YAML file with failures, noise or stages") from error
    parts = catalogue.read(text, str(file))
    for problem in parts.problems:
        print_line(str(problem))
    if parts.problems:
        return int(ExitCode.USAGE)
    counts = f"{len(parts.failures)} failures, {len(parts.noise)} noise, {len(parts.stages)} stages"
    print_line(f"{file}: {counts}: sound")
    return int(ExitCode.DONE)


def main(argv: list[str]) -> int:
    """`python -m console.triage`: diagnose, or `catalogue check FILE`."""
    try:
        if argv[:2] == ["catalogue", "check"] and len(argv) == 3:
            return check(Path(argv[2]))
        about = "The first cause of a vLLM or SGLang log."
        parser = argparse.ArgumentParser(prog="relaunch diagnose", description=about)
        add_arguments(parser)
        return run(parser.parse_args(argv))
    except RelaunchError as error:
        sys.stderr.write(f"{error.message}\n" + (f"{error.remedy}\n" if error.remedy else ""))
        return int(error.code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(ExitCode.DONE)


def print_line(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _opened(file: str) -> IO[bytes]:
    if file == "-":
        return os.fdopen(os.dup(sys.stdin.fileno()), "rb", buffering=0)
    return open(file, "rb", buffering=0)


def _head(stream: IO[bytes]) -> bytes:
    parts, size = [], 0
    while size < HEAD and (part := stream.read(HEAD - size)):
        parts.append(part)
        size += len(part)
    return b"".join(parts)


def _blocks(stream: IO[bytes]) -> Iterator[bytes]:
    # glibc gives freed memory back to the kernel at once, block for block, until it has seen a large piece freed; the page
    # faults would cost as much as the search
    bytes(LARGE)
    while block := stream.read(BLOCK):
        yield block
