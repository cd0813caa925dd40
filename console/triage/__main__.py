"""`python -m console.triage [FILE|-] [--json] [--rules FILE]`: diagnose alone, without the rest of Relaunch."""

from __future__ import annotations

import sys

from console.triage.command import main

sys.exit(main(sys.argv[1:]))
