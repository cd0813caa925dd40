"""Stand-in `journalctl`: the program is `_journal`, imported so that it is compiled once."""

import sys

# isolated mode leaves out the folder that the package stands in
sys.path.insert(0, __file__.rsplit("/", 4)[0])

from console.rehearsal.standins._journal import main

sys.exit(main(sys.argv[1:]))
