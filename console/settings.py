"""Settings of this account: flags beat environment beats the settings file beats defaults. Pure but for one read.

$XDG_CONFIG_HOME/relaunch/settings.yaml holds `node`, `profile`, `profiles`; RELAUNCH_NODE, RELAUNCH_PROFILE and
RELAUNCH_PROFILES say the same. No secret belongs here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Settings:
    """What is used when the command line does not say; None where nothing says it."""

    node: str | None = None
    profile: str | None = None
    profiles: str | None = None
    """A folder with further profiles."""

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Settings:
        """From the environment and the settings file. Raises InvalidFile for a file that cannot be used."""
        path = config_folder(environment) / "settings.yaml"
        names = [field.name for field in fields(cls)]
        stand = dict.fromkeys(names) if not path.is_file() else _of_file(path, names)
        return cls(**{name: environment.get(f"RELAUNCH_{name.upper()}") or stand[name] for name in names})


def _of_file(path: Path, names: list[str]) -> dict[str, str | None]:
    # late: most accounts have no such file, and what checks it costs a tenth of a second
    from pydantic import BaseModel, ConfigDict, create_model

    from console.profile.yamlio import load

    class Strict(BaseModel):
        model_config = ConfigDict(frozen=True, extra="forbid")

    form = create_model("Settings", __base__=Strict, **dict.fromkeys(names, (str | None, None)))  # type: ignore[call-overload]
    data: dict[str, str | None] = load(path, form).model_dump()
    return data


def config_folder(environment: Mapping[str, str]) -> Path:
    """$XDG_CONFIG_HOME/relaunch."""
    return Path(environment.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")) / "relaunch"


def own_presets(environment: Mapping[str, str] = os.environ) -> Path:
    """Where the operator's own saved log filters are; the file need not be there."""
    return config_folder(environment) / "filters.yaml"
