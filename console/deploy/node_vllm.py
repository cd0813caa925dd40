"""Runs on the node with an environment's own Python: the vLLM installed there, by its metadata and by an import.

Standard library only, Python 3.8 (the interpreter of a vLLM environment). Prints {"version", "imported", "error"}.
The import is the light one, `import vllm`, which loads torch lazily or not at all and needs no GPU.
"""

import importlib
import importlib.metadata
import json
import sys
from typing import Any, Dict


def look() -> Dict[str, Any]:
    found = {"version": None, "imported": False, "error": "", "python": "%d.%d.%d" % sys.version_info[:3]}  # type: Dict[str, Any]
    try:
        found["version"] = importlib.metadata.version("vllm")
        importlib.import_module("vllm")
        found["imported"] = True
    except BaseException as error:  # an import can end in SystemExit as well; whatever it is, it is the answer
        found["error"] = "%s: %s" % (type(error).__name__, error)
    return found


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(look()) + "\n")
