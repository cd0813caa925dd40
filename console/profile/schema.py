"""The JSON Schema of a profile, for editors: generated from the classes, committed beside the profiles.

Run `python -m console.profile.schema` to write `profiles/profile.schema.json` again; a test fails when it drifts.
"""

from __future__ import annotations

import json
from pathlib import Path

from console.profile.model import Profile

SCHEMA_FILE = Path(__file__).resolve().parents[2] / "profiles" / "profile.schema.json"


def schema_text() -> str:
    """The schema as the committed file holds it."""
    schema = Profile.model_json_schema()
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Relaunch profile"}
    return json.dumps({**schema, **head}, indent=2, ensure_ascii=False, sort_keys=True) + "\n"


if __name__ == "__main__":
    SCHEMA_FILE.write_text(schema_text(), encoding="utf-8")
