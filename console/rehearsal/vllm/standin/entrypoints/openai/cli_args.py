# ruff: noqa: TID252 - this package is installed under another name
"""`make_arg_parser`, where older versions keep it."""

from ..._version import __version__
from ...flags import FlexibleArgumentParser, add_flags
from ...versions import traits

__all__ = ["make_arg_parser"]


def make_arg_parser(parser: FlexibleArgumentParser) -> FlexibleArgumentParser:
    """Add every flag of `vllm serve` to `parser`."""
    parser.add_argument("model_tag", nargs="?", default=None, help="The model tag to serve")
    add_flags(parser, traits(__version__))
    return parser
