"""The Textual face of Relaunch. Reads snapshots; never awaits the network."""
