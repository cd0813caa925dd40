"""The forecast of a run: known before the download, a table per kind of GPU, held against the log of the launch."""

from __future__ import annotations

import dataclasses
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

from console.checkpoint import hub
from console.checkpoint.forecast import compare, finding, forecast, forecasts, read_log
from console.checkpoint.kv import load_rules, user_rules
from console.checkpoint.patch import planned
from console.deploy.step import Context
from console.errors import UsageError
from console.events import Compared, Event, RunStarted, decode, encode
from console.node.facts import Facts
from console.printing import Printer
from console.settings import config_folder
from tests.unit import checkpoint_samples as samples
from tests.unit.profile_samples import facts, gpu, profile, sample

WEIGHTS = 590_850_735_131
"""Bytes of nvidia/Kimi-K2.5-NVFP4's weights."""
LARGE, SMALL = 97_887 << 20, 81_559 << 20

LOG = """\
(Worker_TP0 pid=30) INFO 11-01 08:00:10 [gpu_model_runner.py:3500] Model loading took 67.94 GiB memory and 40.1 seconds
(Worker_TP3 pid=33) INFO 11-01 08:00:10 [gpu_model_runner.py:3500] Model loading took 68.10 GiB memory and 41.0 seconds
(Worker_TP0 pid=30) INFO 11-01 08:02:00 [gpu_worker.py:298] Available KV cache memory: 14.87 GiB
(Worker_TP3 pid=33) INFO 11-01 08:02:00 [gpu_worker.py:298] Available KV cache memory: 14.71 GiB
(EngineCore_DP0 pid=20) INFO 11-01 08:02:01 [kv_cache_utils.py:1087] GPU KV cache size: 224,800 tokens
"""


def context(config: dict[str, Any] | None = samples.KIMI, *, cards: tuple[int, ...] = (LARGE,) * 8, **options: Any) -> Context:  # fmt: skip
    """A node on which nothing of the model lies yet, and what the hub said of it (config None: it told no config)."""
    one = profile(serve__tensor_parallel_size=8, serve__flags={"gpu-memory-utilization": 0.93, "max-model-len": 131072})
    there: Facts = facts(gpus=sample(*(gpu(index, memory_total=size) for index, size in enumerate(cards))))
    text = {"config.json": json.dumps(config)} if config is not None else {}
    files = (hub.HubFile("config.json", 9, None, "0" * 40), hub.HubFile("a.safetensors", WEIGHTS, "0" * 64, None))
    manifest = hub.Manifest(one.model.repo, one.model.revision, files, text)

    async def confirm(question: str, word: str) -> bool:
        return False

    async def refresh() -> Facts:
        return there

    def emit(event: Event) -> None:
        raise AssertionError("a forecast tells nothing by itself")

    return Context(None, one, there, emit, confirm, refresh, options=options, found={hub.FOUND: manifest})  # type: ignore[arg-type]


def test_the_hub_alone_is_enough_to_decide_and_to_forecast() -> None:
    ctx = context()
    outcome = planned(ctx)
    assert (outcome.known, outcome.decision and outcome.decision.action) == (True, "patch")
    fit = forecast(ctx)
    assert fit is not None
    assert (fit.dtype, fit.loads) == ("bfloat16", True)
    assert fit.tokens == pytest.approx(224_800, rel=0.03)


def test_without_a_config_nothing_is_guessed() -> None:
    ctx = context(None)
    assert not planned(ctx).known
    assert forecasts(ctx) == ()
    assert finding(()).level == "allow"
    assert finding(()).table == ""


def test_unequal_gpus_stand_in_lines_of_their_own_and_the_smallest_decides() -> None:
    found = forecasts(context(cards=(LARGE, LARGE, SMALL, LARGE)))
    assert [each.gpus for each in found] == [(0, 1, 3), (2,)]
    told = finding(found)
    assert told.level == "refuse"
    lines = told.table.splitlines()
    assert lines[0].split() == ["GPU", "memory", "for", "vLLM", "weights", "reserve", "KV", "cache", "tokens"]
    assert lines[1].startswith("0,1,3  ")
    assert "no room" in lines[2]
    assert told.text.removeprefix("the model ") == lines[-1]


def test_a_plan_prints_the_table_and_a_run_does_not() -> None:
    event = finding(forecasts(context())).event("preflight")
    assert decode(json.loads(json.dumps(encode(event)))) == event
    for read_only in (True, False):
        stream = io.StringIO()
        printer = Printer(stream)
        printer(RunStarted(time=0, run="1", verb="redeploy", node="n", profile="p", steps=(), read_only=read_only))
        printer(event)
        assert ("0-7" in stream.getvalue()) is read_only


def test_the_log_is_read_in_the_words_of_old_and_new_versions() -> None:
    found = read_log(LOG.splitlines())
    assert found.weights == pytest.approx(68.10 * 2**30), "the fullest rank decides"
    assert found.kv_memory == pytest.approx(14.71 * 2**30)
    assert found.kv_tokens == 224_800
    later = read_log(["GPU KV cache size: 1,024 tokens, Maximum concurrency for 512 tokens per request: 2.00x"])
    assert (later.kv_tokens, later.weights) == (1024, None)
    old = read_log(["INFO model_runner.py:1115] Loading model weights took 14.9888 GB"])
    assert old.weights == pytest.approx(14.9888 * 2**30)
    assert read_log(["Model loading took ages", "GPU KV cache size: unknown"]) == read_log([])


def test_the_error_of_the_forecast_is_told_per_figure() -> None:
    events = {event.what: event for event in compare(context(), LOG.splitlines())}
    assert set(events) == {"weights", "kv-memory", "kv-cache"}
    tokens = events["kv-cache"]
    assert (tokens.measured, tokens.unit) == (224_800, "tokens")
    assert tokens.error is not None
    assert tokens.expected is not None
    assert tokens.error == pytest.approx((tokens.expected - 224_800) / 224_800)
    assert abs(tokens.error) < 0.03
    assert all(decode(encode(event)) == event for event in events.values())
    assert list(compare(context(), [])) == [], "a log that is gone compares nothing"


def test_what_was_measured_is_told_without_a_forecast_too() -> None:
    (told,) = compare(context(None), ["GPU KV cache size: 5 tokens"])
    assert (told.expected, told.measured, told.error) == (None, 5, None)
    stream = io.StringIO()
    Printer(stream)(told)
    assert stream.getvalue().strip() == "kv-cache 5 tokens, forecast unknown"
    Printer(stream)(Compared(time=0, what="kv-cache", unit="tokens", expected=90, measured=100, error=-0.1))
    assert "forecast 90 tokens (-10.0 %)" in stream.getvalue()


OWN = """\
rules:
- id: our-own-build
  when: {attention: dense-mla, policy: auto}
  then: {action: none, dtype: fp8}
  reason: our build of {vllm} takes FP8 KV on {cc}
"""


def test_rules_in_the_operators_folder_decide_in_a_run() -> None:
    folder = config_folder(os.environ)
    assert user_rules(folder) == load_rules(), "no file, no rules of one's own"
    folder.mkdir(parents=True)
    (folder / "kv_rules.yaml").write_text(OWN)
    ctx = context(kv_rules=user_rules(folder))
    outcome = planned(ctx)
    assert outcome.decision is not None
    assert (outcome.decision.rule, outcome.edits) == ("our-own-build", ())
    fit = forecast(ctx)
    assert fit is not None
    assert fit.dtype == "fp8"
    assert (planned(context()).decision or outcome.decision).rule == "dense-mla-fp8-impossible"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- id: x", "only `rules` and `backends`"),
        ("rule: []", "only `rules` and `backends`"),
        ("rules: [{id: x, when: , then: {action: none, dtype: auto}, reason: y}]", "must be mappings"),
        ("rules: [{id: x, when: {}, then: {action: none}, reason: y}]", "needs a dtype"),
        ("rules: [{id: x, when: {}, then: {action: none, dtype: auto}, reason: 'on {gpu}'}]", "reason names 'gpu'"),
        ("backends: [{name: X}]", "backend 1 needs name, attention"),
        ("backends: [{name: X, attention: gqa, capability: any, windows: [{}]}]", "each window"),
    ],
)
def test_a_rule_that_would_fail_later_is_named_at_once(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "kv_rules.yaml").write_text(text)
    with pytest.raises(UsageError, match=words) as caught:
        user_rules(tmp_path)
    assert str(tmp_path) in caught.value.message


def test_a_rules_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "kv_rules.yaml").mkdir()
    with pytest.raises(UsageError, match="cannot be read"):
        user_rules(tmp_path)


def test_the_command_line_takes_rules_from_the_operators_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from console.cli import main

    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(samples.KIMI))
    (model / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": WEIGHTS}}))
    words = ["patch", str(model), "--cc", "12.0", "--vllm", "0.16.0", "--dry-run", "--json"]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["decision"] == "patch"
    folder = config_folder(os.environ)
    folder.mkdir(parents=True)
    (folder / "kv_rules.yaml").write_text(OWN)
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["reason"] == "our build of 0.16.0 takes FP8 KV on 12.0"
    assert main(["fit", str(model), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kv_dtype"] == "fp8"


def test_drafts_are_verified_before_a_start_too() -> None:
    outcome = planned(context())
    assert outcome.overlays == (outcome.model_path,)
    with_draft = dataclasses.replace(outcome, edits=(), drafts=("/state/overlays/draft-1",))
    assert with_draft.overlays == ("/state/overlays/draft-1",)
