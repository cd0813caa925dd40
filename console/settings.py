"""Settings of this account: flags beat environment beats the settings file beats defaults. Pure but for one read.

$XDG_CONFIG_HOME/relaunch/settings.yaml holds `node`, `profile`, `profiles`; RELAUNCH_NODE, RELAUNCH_PROFILE and
RELAUNCH_PROFILES say the same. No secret belongs here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """What is used when the command line does not say; None where nothing says it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    node: str | None = None
    profile: str | None = None
    profiles: str | None = None
    """A folder with further profiles."""

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Settings:
        """From the environment and the settings file. Raises InvalidFile for a file that cannot be used."""
        path = config_folder(environment) / "settings.yaml"
        settings = cls()
        if path.is_file():
            from console.profile.yamlio import load  # late: most accounts have no such file

            settings = load(path, cls)
        given = {name: environment.get(f"RELAUNCH_{name.upper()}") for name in cls.model_fields}
        return settings.model_copy(update={name: value for name, value in given.items() if value})


def config_folder(environment: Mapping[str, str]) -> Path:
    """$XDG_CONFIG_HOME/relaunch."""
    return Path(environment.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")) / "relaunch"
