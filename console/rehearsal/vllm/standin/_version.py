"""The version this installation pretends to be; the installer writes it anew."""

__version__ = "0.16.0"
ROOT: "str | None" = None
