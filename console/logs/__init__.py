"""A node's log on this machine: a spool file, an index of its lines, and filters that never read it all before answering.

`Spool` holds the text on disk and the place of every line in memory, some ten bytes a line. `View` is one filter over a
spool: it scans from the end, so that the first page is there at once, and goes on in slices while the operator reads.
Synchronous and loop-free; whoever owns the loop decides when `View.work` runs.
"""
