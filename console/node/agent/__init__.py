"""Programs that run on the node as one source text, made of the modules in this folder.

Each module is stdlib-only, Python 3.6-safe, and imports others of this folder by their full names; `program` packs what a
node script needs so that these imports work there, where no `console` is installed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

_HERE = Path(__file__).parent

_LOADER = """\
import sys, types
for _name, _text in {sources!r}:
    _module = sys.modules[_name] = types.ModuleType(_name)
    exec(compile(_text, "<relaunch " + _name.rpartition(".")[2] + ">", "exec"), _module.__dict__)
"""


def program(main: str, modules: Sequence[str]) -> str:
    """The source `main`, preceded by a loader of `modules` of this folder in the given order."""
    sources = [(f"{__name__}.{name}", (_HERE / f"{name}.py").read_text()) for name in modules]
    return _LOADER.format(sources=sources) + main


def source(name: str) -> str:
    """The text of one module of this folder."""
    return (_HERE / f"{name}.py").read_text()
