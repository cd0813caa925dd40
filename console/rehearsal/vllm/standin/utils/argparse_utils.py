# ruff: noqa: TID252 - this package is installed under another name
"""`FlexibleArgumentParser`, where vLLM keeps it."""

from ..flags import FlexibleArgumentParser

__all__ = ["FlexibleArgumentParser"]
