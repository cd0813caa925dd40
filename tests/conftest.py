"""What every test shares: a home of its own, so that no test reads or writes the account's real state."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.hookimpl(tryfirst=True)  # before xdist reads the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that share something costly (a node of the lab, one tmux server) stay together when several run at once."""
    for item in items:
        layer = item.path.relative_to(Path(__file__).parent).parts[0]
        if layer in ("node", "tmux", "vllm"):
            item.add_marker(pytest.mark.xdist_group(layer))


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
