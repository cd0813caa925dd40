"""A real vLLM on a real systemd and OpenSSH node. Opt-in: these tests run under `make test-vllm`, and skip elsewhere.

The environment takes minutes to make and 2.5 GB, each start of vLLM some 40 seconds on two idle cores.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node.lab import Lab, NoLab, open_lab
from tests.vllm.box import VllmBox, furnished, hub_of, tiny_model
from tests.vllm.environment import NoVllm, ensure

OPT_IN = "RELAUNCH_TEST_VLLM"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skipped at collection, so that no test of `make test` makes an environment."""
    if os.environ.get(OPT_IN):
        return
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.skip(reason="a real vLLM is opt-in: make test-vllm"))


@pytest.fixture(scope="session")
def venv() -> Path:
    """The environment with the real vLLM, on this machine and on the node."""
    try:
        return ensure()
    except NoVllm as reason:
        pytest.skip(f"no real vLLM here: {reason}")


@pytest.fixture(scope="session")
def vllm_lab() -> Iterator[Lab]:
    try:
        with open_lab() as made:
            yield made
    except NoLab as reason:
        pytest.skip(f"no real nodes here: {reason}")


@pytest.fixture(scope="session")
def box(venv: Path, vllm_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmBox]:
    """The node, its hub, and the profile that is deployed there; every run's events are kept in it."""
    folder = tmp_path_factory.mktemp("vllm")
    machine = vllm_lab.boot("vllm")
    try:
        with hub_of(machine, tiny_model(venv, folder / "model")) as endpoint:
            yield furnished(machine, endpoint, folder)
    finally:
        vllm_lab.halt("vllm")
