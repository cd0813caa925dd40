"""Stand-in `ss -ltnp`: the practice network's listeners, from ROOT/net/PORT.json, in the format of iproute2."""

import glob
import json
import os
import sys
from collections.abc import Iterator

HEADER = "State  Recv-Q Send-Q Local Address:Port  Peer Address:Port Process\n"


def lives(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return not os.path.isdir("/proc/self")


def name_of(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read().strip()
    except OSError:
        return "python3"


def listeners(root: str) -> Iterator[tuple[int, int, str]]:
    """Port, pid, address of each that lives."""
    for path in glob.glob(os.path.join(os.path.realpath(root + "/net"), "*.json")):
        try:
            with open(path) as file:
                data = json.load(file)
            pid, port = int(data["pid"]), int(os.path.basename(path)[:-5])
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if lives(pid):
            yield port, pid, str(data.get("address") or data.get("host") or "127.0.0.1")


def main(argv: list[str]) -> int:
    flags = "".join(word[1:] for word in argv if word.startswith("-") and not word.startswith("--"))
    if "H" not in flags and "--no-header" not in argv:
        sys.stdout.write(HEADER)
    wanted = [word.rpartition(":")[2] for word in argv if ":" in word]
    for port, pid, address in sorted(listeners(os.environ.get("RELAUNCH_PRACTICE_ROOT", "/var/lib/relaunch-practice"))):
        if wanted and str(port) not in wanted:
            continue
        users = f' users:(("{name_of(pid)}",pid={pid},fd=27))' if "p" in flags else ""
        sys.stdout.write(f"LISTEN {0:<6} {2048:<6} {f'{address}:{port}':>20} {'0.0.0.0:*':>18}{users}\n")
    return 0


sys.exit(main(sys.argv[1:]))
