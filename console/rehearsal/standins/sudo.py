"""Stand-in `sudo`: the practice user may do everything without a password, as itself. No password is ever read."""

import os
import sys

TAKE_VALUE = ("-u", "-g", "-p", "-C", "-D", "-R", "-T", "-h", "--user", "--group", "--prompt", "--chdir", "--host")


def main(argv: list[str]) -> int:
    at, validates = 0, False
    while at < len(argv) and argv[at].startswith("-"):
        option = argv[at]
        if option == "--":
            at += 1
            break
        validates |= option in (
            "-v",
            "-k",
            "-K",
            "-l",
            "--validate",
            "--reset-timestamp",
            "--remove-timestamp",
            "--list",
        )
        at += 2 if option in TAKE_VALUE else 1
    environment = dict(os.environ)
    while at < len(argv) and "=" in argv[at] and not argv[at].startswith(("/", "=")):
        name, _, value = argv[at].partition("=")
        environment[name] = value
        at += 1
    command = argv[at:]
    if not command:
        if validates:
            return 0
        sys.stderr.write("usage: sudo -h | -K | -k | -V\n")
        return 1
    try:
        os.execvpe(command[0], command, environment)
    except OSError:
        sys.stderr.write(f"sudo: {command[0]}: command not found\n")
        return 1


sys.exit(main(sys.argv[1:]))
