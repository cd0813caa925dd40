"""What KV dtypes the installed TRITON_MLA backend supports, read from its source; runs on the node, Python 3.6.

The class attribute `supported_kv_cache_dtypes` is a literal list, so the file is parsed and never imported: importing
vLLM takes 13 seconds and torch. ASK: {"venv"}. Answers {"dtypes": [text] or null, "file": path or null}.
"""

import ast
import glob
import json
import os
from typing import Any, Dict, List, Optional

ASK: Dict[str, Any] = globals().get("ASK", {})

PLACES = ("vllm/v1/attention/backends/mla/triton_mla.py", "vllm/**/triton_mla.py")


def source_of(venv: str) -> Optional[str]:
    """The backend's file in the environment."""
    for place in PLACES:
        pattern = os.path.join(glob.escape(venv), "lib*", "python*", "site-packages", place)
        found = sorted(glob.glob(pattern, recursive=True))
        if found:
            return found[0]
    return None


def literal(path: str) -> Optional[List[str]]:
    """The list assigned to `supported_kv_cache_dtypes` in the class whose name says TritonMLA."""
    with open(path, encoding="utf-8", errors="replace") as file:
        tree = ast.parse(file.read())
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef) or "TritonMLA" not in node.name:
            continue
        for item in node.body:
            targets = getattr(item, "targets", None) or [getattr(item, "target", None)]
            names = [getattr(target, "id", "") for target in targets]
            if "supported_kv_cache_dtypes" in names:
                try:
                    value = ast.literal_eval(item.value)  # type: ignore[attr-defined]
                except ValueError:
                    continue
                return [str(dtype) for dtype in value]
    return None


def probe(ask: Dict[str, Any]) -> Dict[str, Any]:
    path = source_of(ask["venv"])
    if path is None:
        return {"dtypes": None, "file": None}
    try:
        return {"dtypes": literal(path), "file": path}
    except (OSError, SyntaxError):
        return {"dtypes": None, "file": path}


if __name__ == "__main__":
    print(json.dumps(probe(ASK)))
