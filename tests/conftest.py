"""What every test shares: a home of its own, so that no test reads or writes the account's real state."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh HOME and XDG folders; no token, no node, no colour setting of the person who runs the tests."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    for name, folder in (("STATE", "state"), ("CONFIG", "config"), ("CACHE", "cache")):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(home / folder))
    for name in (
        "HF_TOKEN",
        "HF_TOKEN_PATH",
        "HF_HOME",
        "NO_COLOR",
        "RELAUNCH_NODE",
        "RELAUNCH_PROFILE",
        "SSH_AUTH_SOCK",
    ):
        monkeypatch.delenv(name, raising=False)
    return home
