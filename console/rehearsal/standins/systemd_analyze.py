"""Stand-in `systemd-analyze`: the practice init does the work and says what is to be said."""

import sys

# isolated mode leaves out the folder that the package stands in
sys.path.insert(0, __file__.rsplit("/", 4)[0])

from console.rehearsal.standins._desk import call

sys.exit(call("systemd-analyze", sys.argv[1:]))
