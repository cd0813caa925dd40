"""What a plan knows before anything is downloaded, by whose rules, and what a launch says of the forecast afterwards."""

from __future__ import annotations

import os
from pathlib import Path

from console.deploy.script import load_script
from console.deploy.store import open_store
from console.engine import Engine, RunOptions
from console.events import Changed, Compared, Event, Found, RunEnded, StepChanged
from console.node.ssh import SshNode
from console.profile.load import find_profile
from console.rehearsal.practice import Practice
from console.settings import config_folder
from tests.rehearsal.launch_node import deployment

OWN = """\
rules:
- id: our-own-build
  when: {attention: dense-mla, policy: auto}
  then: {action: none, dtype: fp8}
  reason: our build of {vllm} takes FP8 KV on {cc}
"""


async def plan(practice: Practice, node: SshNode) -> tuple[RunEnded, list[Event]]:
    profile = find_profile("rehearsal")
    model = profile.model.model_copy(update={"endpoint": practice.hub})
    events: list[Event] = []
    with open_store() as store:
        engine = Engine(node, profile.model_copy(update={"model": model}), store)
        engine.subscribe(events.append)
        end = await engine.run(load_script("redeploy"), RunOptions(dry_run=True, deep=True))
    return end, events


async def test_a_first_plan_knows_patch_and_memory_and_follows_the_operators_rules(
    practice: Practice, practice_node: SshNode
) -> None:
    end, events = await plan(practice, practice_node)
    assert end.code == 0
    tables = [event for event in events if isinstance(event, Found) and event.table]
    assert [(event.step, event.rule) for event in tables] == [("patch", "fit")]
    assert tables[0].table.splitlines()[1].startswith("0-7  NVIDIA RTX PRO 6000")
    diffs = {event.text: event.diff for event in events if isinstance(event, Changed) and event.step == "patch"}
    assert any('+        "kv_cache_scheme": null,' in diff for diff in diffs.values())
    unit = next(event.diff for event in events if isinstance(event, Changed) and event.step == "unit")
    assert "/overlays/Kimi-K2.5-NVFP4-" in unit

    folder = config_folder(os.environ)
    folder.mkdir(parents=True)
    (folder / "kv_rules.yaml").write_text(OWN)
    end, events = await plan(practice, practice_node)
    assert end.code == 0
    patch = [event for event in events if isinstance(event, StepChanged) and event.step == "patch"]
    assert (patch[-1].state, patch[-1].detail) == ("satisfied", "our build of 0.16.0 takes FP8 KV on 12.0")

    (folder / "kv_rules.yaml").write_text("rules: [{id: x}]")
    end, _ = await plan(practice, practice_node)
    assert end.code == 2
    assert "kv_rules.yaml: rule 1 needs id" in end.text


async def test_a_launch_tells_how_good_the_forecast_was(tmp_path: Path) -> None:
    async with deployment(tmp_path / "state") as made:
        await made.bring_about("launch", "ready")
        told = {event.what: event for event in made.of(Compared)}
        assert set(told) == {"weights", "kv-memory", "kv-cache"}
        assert told["kv-cache"].unit == "tokens"
        assert told["weights"].measured == 67.94 * 2**30
