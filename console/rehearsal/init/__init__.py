"""The practice init: what systemd does for one node, over real processes. Unit files in, states, journal, cgroups out.

`text` parses units; `shim` is the small process that holds one unit's processes together; `service` is the life of one
service; `manager` knows all units; `journal` keeps what they say; `desk` answers the stand-in programs.
"""
