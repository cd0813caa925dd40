"""Run every benchmark, or those named, one after the other: `make bench`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def main(names: list[str]) -> int:
    known = sorted(path.parent.name for path in HERE.glob("*/__main__.py"))
    unknown = set(names) - set(known)
    if unknown:
        print(f"no such benchmark: {', '.join(sorted(unknown))}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    failed = 0
    for name in names or known:
        print(f"== {name}", flush=True)
        failed += bool(
            subprocess.run([sys.executable, "-m", f"tests.benchmarks.{name}"], cwd=HERE.parent.parent).returncode
        )
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
