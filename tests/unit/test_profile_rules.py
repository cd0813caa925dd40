"""Profiles: every rule names its field, hostile text is refused or kept intact, folders are searched in order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from console.errors import ExitCode, InvalidFile, UsageError
from console.profile import rules
from console.profile.load import (
    describe,
    find_profile,
    lint,
    list_profiles,
    load_profile,
    parse_profile,
    profile_folders,
)
from console.profile.model import Profile
from tests.unit.profile_samples import COMMIT, TEXT, leaves, profile, profile_data

CASES: list[tuple[dict[str, Any], str, str]] = [
    ({"name": "Sample One"}, "name", "lower-case"),
    ({"model__repo": "no-slash"}, "model.repo", "owner/name"),
    ({"model__repo": "a/../b"}, "model.repo", "owner/name"),
    ({"model__revision": "main"}, "model.revision", "the full commit"),
    ({"model__revision": COMMIT[:12]}, "model.revision", "the full commit"),
    ({"model__revision": COMMIT.upper()}, "model.revision", "the full commit"),
    ({"model__folder": "models/kimi"}, "model.folder", "absolute folder"),
    ({"model__folder": "/srv/../etc"}, "model.folder", "without . and .. parts"),
    ({"model__folder": "/"}, "model.folder", "not allowed"),
    ({"model__folder": "~"}, "model.folder", "absolute folder"),
    ({"model__folder": "/srv//x"}, "model.folder", "one slash"),
    ({"model__folder": "/srv/a\nb"}, "model.folder", "control or invisible"),
    ({"model__folder": "/srv/a\u202eb"}, "model.folder", "control or invisible"),
    ({"model__endpoint": "https://user:pw@hub"}, "model.endpoint", "without user name or password"),
    ({"model__endpoint": "ftp://hub"}, "model.endpoint", "http(s) address"),
    ({"model__served_name": " x"}, "model.served_name", "without spaces around"),
    ({"vllm__version": ">=0.16"}, "vllm.version", "one exact version"),
    ({"vllm__version": "latest"}, "vllm.version", "one exact version"),
    ({"vllm__venv": "/opt/my venv"}, "vllm.venv", "letters, digits"),
    ({"vllm__venv": "/opt/$HOME"}, "vllm.venv", "letters, digits"),
    ({"vllm__venv": "~/srv/Model/venv"}, "vllm.venv", "must not lie in one another"),
    ({"vllm__python": "-c evil"}, "vllm.python", "a program's name"),
    ({"vllm__python": "-c"}, "vllm.python", "a program's name"),
    ({"vllm__packages": ["--extra-index-url=http://evil"]}, "vllm.packages[0]", "an option is not allowed"),
    ({"vllm__index_url": "http://a:b@c/"}, "vllm.index_url", "without user name or password"),
    ({"serve__flags": {"port": 8001}}, "serve.flags.port", "say it in service.port"),
    ({"serve__flags": {"--max-model-len": 1}}, "serve.flags.--max-model-len", "write max-model-len"),
    ({"serve__flags": {"max_model_len": 1}}, "serve.flags.max_model_len", "write max-model-len"),
    ({"serve__flags": {"tensor_parallel_size": 4}}, "serve.flags.tensor_parallel_size", "serve.tensor_parallel_size"),
    ({"serve__flags": {"served-model-name": "x"}}, "serve.flags.served-model-name", "model.served_name"),
    ({"serve__flags": {"api-key": "x"}}, "serve.flags.api-key", "environment_file"),
    ({"serve__flags": {"config": "/x"}}, "serve.flags.config", "override"),
    ({"serve__flags": {"kv-cache-dtype": "bfloat16"}}, "serve.flags.kv-cache-dtype", "policy: bfloat16"),
    ({"serve__flags": {"a b": 1}}, "serve.flags.a b", "a flag's long name"),
    ({"serve__flags": {"enforce-eager": True, "no-enforce-eager": True}}, "serve.flags.no-enforce-eager", "contradicts"),
    ({"serve__flags": {"middleware": []}}, "serve.flags.middleware", "an empty list"),
    ({"serve__flags": {"middleware": ["-x"]}}, "serve.flags.middleware", "leading dash"),
    ({"serve__flags": {"chat-template": "a\nb"}}, "serve.flags.chat-template", "control or invisible"),
    ({"environment": {"A-B": {"value": "1"}}}, "environment.A-B", "a variable's name"),
    ({"environment": {"PATH": {"value": "/x"}}}, "environment.PATH", "say CUDA_HOME"),
    ({"environment": {"HF_TOKEN": {"value": "x"}}}, "environment.HF_TOKEN", "environment_file"),
    ({"environment": {"VLLM_API_KEY": {"value": "x"}}}, "environment.VLLM_API_KEY", "environment_file"),
    ({"environment": {"X": {"value": "a\nb"}}}, "environment.X.value", "control or invisible"),
    ({"environment": {"X": {"value": "hf_abcdefghijklmnopqrstuv"}}}, "environment.X.value", "looks like a secret"),
    ({"title": "sk-abcdefghijklmnopqrstuvwx"}, "title", "looks like a secret"),
    ({"service__unit": "vllm"}, "service.unit", "ends in .service"),
    ({"service__unit": "a b.service"}, "service.unit", "ends in .service"),
    ({"service__unit": "../x.service"}, "service.unit", "ends in .service"),
    ({"service__unit": "relaunch-x.service"}, "service.unit", "Relaunch's own jobs"),
    ({"service__user": "a;b"}, "service.user", "account"),
    ({"service__host": "::1 x"}, "service.host", "address"),
    ({"service__limits": {"LimitFOO": "1"}}, "service.limits.LimitFOO", "not a limit of systemd"),
    ({"service__limits": {"ExecStartPre": "/bin/evil"}}, "service.limits.ExecStartPre", "not a limit"),
    ({"service__limits": {"LimitNOFILE": "many"}}, "service.limits.LimitNOFILE", "a number or infinity"),
    ({"service__environment_file": "~/x.env"}, "service.environment_file", "absolute path"),
    ({"service__environment_file": "/etc/a b"}, "service.environment_file", "letters, digits"),
    ({"replaces": ["vllm-new.service"]}, "replaces[0]", "own unit"),
    ({"replaces": ["sshd.service"]}, "replaces[0]", "does not stop it"),
    ({"replaces": ["systemd-logind.service"]}, "replaces[0]", "does not stop it"),
    ({"replaces": ["a.service", "a.service"]}, "replaces[1]", "stands twice"),
    ({"space__may_remove": ["/srv"]}, "space.may_remove[0]", "directly under the root"),
    ({"space__may_remove": ["~/srv"]}, "space.may_remove[0]", "holds, or lies in"),
    ({"space__may_remove": ["~/opt/vllm-0.16.0/lib"]}, "space.may_remove[0]", "holds, or lies in"),
    ({"ready__stalls": {"nccl": 5}}, "ready.stalls.nccl", "unknown stage"),
    ({"ready__stalls": {"nccl-init": 5}}, "ready.stalls.nccl-init", "did you mean nccl_init?"),
    ({"ready__stalls": {"ready": 0}}, "ready.stalls.ready", "more than 0"),
    ({"ready__prompts": [{"prompt": " "}]}, "ready.prompts[0].prompt", "is empty"),
    ({"throughput__points": [{"concurrency": 4, "prompts": 2}]}, "throughput.points[0].prompts", "at least 4"),
    (
        {"throughput__points": [{"concurrency": 1, "prompts": 1}] * 2},
        "throughput.points[1]", "stands twice",
    ),
    (
        {"serve__flags": {"max-model-len": 1000}, "throughput__points": [{"concurrency": 1, "prompts": 1}]},
        "throughput.points[0]", "do not fit max-model-len 1,000",
    ),
    (
        {"throughput": {"points": [{"concurrency": 1, "prompts": 1}], "gates": [{"concurrency": 2, "min_output_tokens_per_s": 1}]}},
        "throughput.gates[0].concurrency", "no load point has concurrency 2; measured: 1",
    ),
    (
        {"throughput": {"points": [{"concurrency": 1, "prompts": 1}], "gates": [{"concurrency": 1}]}},
        "throughput.gates[0]", "has no bound",
    ),
    (
        {"throughput": {"points": [{"concurrency": 1, "prompts": 1}], "gates": [{"concurrency": 1, "tolerance_percent": 120}]}},
        "throughput.gates[0].tolerance_percent", "from 0 to 100",
    ),
    ({"on_failure": "explode"}, "on_failure", "one of rollback, hold"),
    ({"kv_cache": {"policy": "bf16"}}, "kv_cache.policy", "one of auto, bfloat16, fp8"),
    ({"service__port": 0}, "service.port", "at least 1"),
]  # fmt: skip


def parsed(data: dict[str, Any]) -> tuple[Profile | None, list[str]]:
    """JSON is YAML, so hostile text needs no quoting of ours."""
    value, problems = parse_profile(json.dumps(data), file="p.yaml")
    return value, [f"{problem.field}: {problem.message}" for problem in problems]


@pytest.mark.parametrize(("changes", "field", "says"), CASES, ids=[f"{n}-{case[1]}" for n, case in enumerate(CASES)])
def test_each_rule_names_its_field(changes: dict[str, Any], field: str, says: str) -> None:
    value, problems = parsed(profile_data(**changes))
    assert value is None
    assert any(problem.startswith(f"{field}: ") and says in problem for problem in problems), problems


def test_the_sample_is_good() -> None:
    value, problems = parsed(profile_data())
    assert not problems
    assert value == profile()


def test_problems_of_form_type_and_rule_come_together() -> None:
    data = profile_data(model__revision="main", service__port=0, extra=1, replaces=["vllm-new.service"])
    fields = [problem.split(":")[0] for problem in parsed(data)[1]]
    assert sorted(fields) == ["extra", "model.revision", "replaces[0]", "service.port"]


def test_incomplete_data_never_raises() -> None:
    for part in ("model", "vllm", "serve", "service"):
        data = profile_data()
        del data[part]
        list(rules.problems(data))
    list(rules.problems({"throughput": {"points": [5], "gates": [5]}, "replaces": [5], "space": {"may_remove": [5]}}))
    assert list(rules.problems("nonsense")) == []


HOSTILE = [
    "a b", "a'b", 'a"b', "a`id`b", "a$(id)b", "a${HOME}b", "a;id", "a|id", "a&&id", "a>f", "a\\b", "%h", "a%b", "../../etc/passwd",
    "a\nb", "a\rb", "a\tb", "a\x00b", "a\x1b[31mb", "-x", "--help", "é日本語", "a\u202eb", "*", "~root", "", "=", "#c", "!x",
]  # fmt: skip


def hostile_profile() -> dict[str, Any]:
    """A profile in which every text field that can be set is set."""
    return profile_data(
        title="t", model__endpoint="https://hub.example", vllm__python="python3", vllm__index_url="https://index.example",
        vllm__packages=["blobfile"], serve__flags={"chat-template": "x", "middleware": ["x"], "hf-overrides": {"k": "v"}},
        environment={"NCCL_PROTO": {"value": "LL", "source": "s"}}, service__user="root", service__host="127.0.0.1",
        service__limits={"LimitCORE": "0"}, service__environment_file="/etc/relaunch.env", replaces=["old.service"],
        space__may_remove=["/srv/old/model"], ready__prompts=[{"prompt": "p", "expect": "e"}],
    )  # fmt: skip


def replaced(data: Any, loc: tuple[str | int, ...], text: str) -> Any:
    if not loc:
        return text
    copy = dict(data) if isinstance(data, dict) else list(data)
    copy[loc[0]] = replaced(copy[loc[0]], loc[1:], text)
    return copy


PASSES = {
    "title": {"a b", "a'b", 'a"b', "a`id`b", "a$(id)b", "%h", "é日本語", "--help"},
    "model.served_name": {"a b", "a'b", 'a"b', "a$(id)b", "%h", "é日本語", "-x"},
    "serve.flags.chat-template": {
        "a b",
        "a'b",
        'a"b',
        "a`id`b",
        "a$(id)b",
        "%h",
        "a\\b",
        "é日本語",
        "-x",
        "",
        "../../etc/passwd",
    },
    "serve.flags.hf-overrides.k": set(HOSTILE),
    "environment.NCCL_PROTO.value": {"a b", "a'b", 'a"b', "a`id`b", "a$(id)b", "%h", "a\\b", "é日本語", "", "-x"},
    "ready.prompts[0].prompt": {"a b", "a\nb", "a\x1b[31mb", "a$(id)b"},
}


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_refused_or_kept_intact_in_every_field(text: str) -> None:
    from console.profile.yamlio import dotted

    for loc, _ in leaves(hostile_profile()):
        value, problems = parsed(replaced(hostile_profile(), loc, text))
        if value is None:
            assert all(problem for problem in problems)
            assert text not in PASSES.get(dotted(loc), set()), (loc, text, problems)
        else:
            stored = dict(leaves(value.model_dump()))
            assert stored[loc] == text


def test_fields_that_become_names_or_programs_take_no_hostile_text() -> None:
    from console.profile.yamlio import dotted

    plain = {"vllm.venv", "vllm.version", "vllm.python", "service.unit", "service.user", "service.host", "model.repo",
             "model.revision", "service.limits.LimitCORE", "replaces[0]", "service.environment_file", "name"}  # fmt: skip
    for loc, _ in leaves(hostile_profile()):
        if dotted(loc) in plain:
            for text in HOSTILE:
                assert parsed(replaced(hostile_profile(), loc, text))[0] is None, (loc, text)


def test_finding_by_name_and_path(tmp_path: Path) -> None:
    mine, shipped = tmp_path / "mine", tmp_path / "shipped"
    for folder, title in ((mine, "mine"), (shipped, "shipped")):
        folder.mkdir()
        (folder / "sample.yaml").write_text(TEXT + f"title: {title}\n")
    (shipped / "broken.yaml").write_text("name: broken\nmodle: {}\n")
    folders = [tmp_path / "absent", mine, shipped]
    assert find_profile("sample", folders).title == "mine"
    assert find_profile(str(shipped / "sample.yaml"), folders).title == "shipped"
    with pytest.raises(UsageError) as caught:
        find_profile("sampel", folders)
    assert caught.value.remedy == "did you mean sample?"
    assert caught.value.code == ExitCode.USAGE
    listed = {entry.name: entry for entry in list_profiles(folders)}
    assert listed["sample"].profile is not None
    assert listed["broken"].profile is None
    assert any("did you mean model?" in str(problem) for problem in listed["broken"].problems)


def test_a_file_is_named_as_its_profile(tmp_path: Path) -> None:
    path = tmp_path / "other.yaml"
    path.write_text(TEXT)
    assert [problem.field for problem in lint(path)] == ["name"]
    with pytest.raises(InvalidFile, match="the name is sample, the file's is other"):
        load_profile(path)


def test_folders_follow_the_xdg_variable(tmp_path: Path) -> None:
    folders = profile_folders([tmp_path], {"XDG_CONFIG_HOME": "/x", "HOME": "/h"})
    assert folders[:2] == (tmp_path, Path("/x/relaunch/profiles"))
    assert profile_folders((), {"HOME": "/h"})[0] == Path("/h/.config/relaunch/profiles")


def test_describe_tells_what_an_operator_asks() -> None:
    text = describe(profile(replaces=["old.service"]))
    for part in ("owner/Model-NVFP4", "0.16.0", "vllm-new.service", "old.service", "rollback"):
        assert part in text
