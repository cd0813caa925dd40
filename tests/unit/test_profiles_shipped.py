"""The profiles that ship: valid, explained line by line, and with flags that the pinned vLLM has."""

from __future__ import annotations

import re

import pytest

from console.deploy.flags import check_flags, table_for
from console.profile.load import SHIPPED, find_profile, list_profiles
from console.profile.schema import SCHEMA_FILE, schema_text

NAMES = ("glm-5", "kimi-k2.5-nvfp4", "rehearsal")
GPU_BYTES = 97887 << 20


def test_what_ships() -> None:
    assert [(entry.name, entry.problems) for entry in list_profiles([SHIPPED])] == [(name, ()) for name in NAMES]


def test_the_schema_is_the_classes() -> None:
    assert SCHEMA_FILE.read_text() == schema_text(), "run: python -m console.profile.schema"


@pytest.mark.parametrize("name", NAMES)
def test_editors_find_the_schema(name: str) -> None:
    first = (SHIPPED / f"{name}.yaml").read_text().splitlines()[0]
    assert first == "# yaml-language-server: $schema=../profile.schema.json"
    assert (SHIPPED / "../profile.schema.json").is_file()


@pytest.mark.parametrize("name", NAMES)
def test_flags_and_variables_exist_in_the_pinned_version(name: str) -> None:
    profile = find_profile(name, [SHIPPED])
    findings = check_flags(profile, table_for(profile.vllm.version))
    assert [finding.level for finding in findings] == ["allow"], findings


@pytest.mark.parametrize("name", ["glm-5", "kimi-k2.5-nvfp4"])
def test_every_flag_and_variable_says_where_it_comes_from(name: str) -> None:
    profile = find_profile(name, [SHIPPED])
    lines = (SHIPPED / f"{name}.yaml").read_text().splitlines()
    for flag in profile.serve.flags:
        number = next(n for n, line in enumerate(lines) if line.startswith(f"    {flag}:"))
        assert "#" in lines[number] or lines[number - 1].lstrip().startswith("#"), flag
    for variable, entry in profile.environment.items():
        assert entry.source not in ("", "profile"), variable


def test_the_mission_profile() -> None:
    kimi = find_profile("kimi-k2.5-nvfp4", [SHIPPED])
    assert kimi.serve.tensor_parallel_size == 8
    assert kimi.vllm.version == "0.16.0"
    assert kimi.serve.flags["tool-call-parser"] == kimi.serve.flags["reasoning-parser"] == "kimi_k2"
    assert kimi.environment["NCCL_PROTO"].value == "LL"
    assert kimi.environment["NCCL_P2P_LEVEL"].value == "SYS"
    assert kimi.kv_cache.policy == "auto"
    assert "disable-log-requests" not in kimi.serve.flags
    assert re.fullmatch("[0-9a-f]{40}", kimi.model.revision)


def test_the_context_of_the_mission_profile_fits_bf16_kv() -> None:
    """61 layers x 576 values x 2 bytes per token on every GPU; weights 590,850,735,131 bytes over 8 GPUs. What is left
    for activations and graphs must be 8 GiB or more."""
    kimi = find_profile("kimi-k2.5-nvfp4", [SHIPPED])
    context, share = kimi.serve.flags["max-model-len"], kimi.serve.flags["gpu-memory-utilization"]
    assert isinstance(context, int)
    assert isinstance(share, float)
    left = GPU_BYTES * share - 590_850_735_131 / 8 - context * 61 * 576 * 2
    assert left > 8 << 30
    assert GPU_BYTES * share - 590_850_735_131 / 8 - 262_144 * 61 * 576 * 2 < 4 << 30


def test_the_old_service_keeps_fp8_and_a_vllm_with_a_sparse_backend() -> None:
    glm = find_profile("glm-5", [SHIPPED])
    assert glm.kv_cache.policy == "fp8"
    assert glm.vllm.version == "0.33.0"
    assert glm.service.unit in find_profile("kimi-k2.5-nvfp4", [SHIPPED]).replaces


def test_the_rehearsal_is_the_mission_in_small() -> None:
    kimi, practice = find_profile("kimi-k2.5-nvfp4", [SHIPPED]), find_profile("rehearsal", [SHIPPED])
    assert practice.model.repo == kimi.model.repo
    assert practice.serve == kimi.serve
    assert practice.vllm.version == kimi.vllm.version
    assert practice.service.unit == kimi.service.unit
    assert practice.replaces == ("vllm-glm5.service",)
    assert [point.concurrency for point in practice.throughput.points] == [1, 4]
    assert practice.model.folder == "~/srv/models/Kimi-K2.5-NVFP4"
    assert practice.vllm.venv == "~/opt/vllm-0.16.0"
