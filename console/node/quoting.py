"""The one place where argv becomes text for a login shell.

Everything else in the house passes argv tuples. `command_line` is total over what a POSIX shell can carry and refuses the
rest: a NUL byte ends a C string, a lone surrogate is no UTF-8, and one argument of `sh -c` may hold 128 KiB at most
(MAX_ARG_STRLEN of Linux; a longer one ends in "Argument list too long" after the fact).
"""

from __future__ import annotations

import shlex

from console.node.base import Argv

LONGEST = 128 * 1024 - 1
"""Bytes of one command line."""

# The shell text is constant and the command travels as "$@", so nothing is assembled from data. A helper is told to end
# when stdin closes, which is what sshd does to it when the link breaks: a silent command would else run on for ever as an
# orphan. `cat` needs its own copy of stdin because a shell gives /dev/null to background commands; it must hold neither
# stdout nor stderr, or the channel would stay open after the helper's end.
_GUARD = (
    'exec 3<&0; "$@" </dev/null 3<&- & helper=$!; '
    '{ cat <&3; kill "$helper"; } >/dev/null 2>&1 & watch=$!; exec 3<&- 1>&- 2>&-; '
    'wait "$helper"; code=$?; kill "$watch"; exit "$code"'
)


class Unspeakable(ValueError):
    """An argv that no login shell can be told."""


def command_line(argv: Argv) -> str:
    """`argv` as one line for a POSIX login shell. Raises `Unspeakable`."""
    if not argv or not argv[0]:
        raise Unspeakable("a command needs a program name")
    for part in argv:
        if "\0" in part:
            raise Unspeakable(f"an argument of {argv[0].split(chr(0))[0]!r} holds a NUL byte")
    line = shlex.join(argv)
    try:
        length = len(line.encode())
    except UnicodeEncodeError:
        raise Unspeakable(f"an argument of {argv[0]!a} is no valid text") from None
    if length > LONGEST:
        raise Unspeakable(f"the command line of {argv[0]!r} has {length:,} bytes; a shell takes {LONGEST:,}")
    return line


def guarded(argv: Argv) -> Argv:
    """`argv` as an attached helper: runs without stdin, and is ended when the guard's own stdin closes."""
    return ("sh", "-c", _GUARD, "relaunch", *argv)
