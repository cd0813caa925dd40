# ruff: noqa: TID252 - this package is installed under another name
"""`make_arg_parser`, where newer versions keep it."""

from ..openai.cli_args import make_arg_parser

__all__ = ["make_arg_parser"]
