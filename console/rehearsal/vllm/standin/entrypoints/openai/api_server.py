# ruff: noqa: TID252 - this package is installed under another name
"""`python -m vllm.entrypoints.openai.api_server`: the older way to the same server."""

import sys

from ..cli.main import _serve

if __name__ == "__main__":
    sys.exit(_serve(sys.argv[1:], "api_server.py"))
