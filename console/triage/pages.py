"""`python -m console.triage.pages`: write profiles/FAILURES.md anew from the catalogue. A test fails while it differs."""

from __future__ import annotations

import sys

from console.triage.page import failures_page
from console.triage.rules import folder, load_rules


def main() -> int:
    (folder() / "FAILURES.md").write_text(failures_page(load_rules()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
