"""Shards per rank: what the log says of the first rank and of those that are ready, what memory says of the others."""

from __future__ import annotations

from dataclasses import replace

from console.triage.diagnosis import Diagnosis, RankState
from screens.widgets.shards import behind, shards_by_rank
from tests.screens import glances


def diagnosis(**given: object) -> Diagnosis:
    found = glances.loading().log.diagnosis
    assert found is not None
    return replace(found, **given)  # type: ignore[arg-type]


def told(found: Diagnosis | None, held: dict[str, float]) -> dict[str, str]:
    return {name: str(one) for name, one in shards_by_rank(found, held).items()}


def test_the_first_rank_is_told_by_the_log_and_the_others_by_their_memory() -> None:
    held = {"TP10": 68.0, "TP3": 49.7, "TP0": 68.1, "TP1": 500.0, "TP2": 0.0}
    shards = shards_by_rank(diagnosis(), held)
    assert {name: str(one) for name, one in shards.items()} == {
        "TP0": "57/119", "TP10": "~57/119", "TP3": "~42/119", "TP1": "~119/119", "TP2": "~0/119",
    }  # fmt: skip
    assert [behind(shards, name) for name in ("TP3", "TP0", "TP1", "TP9")] == [15, 0, 0, 0]


def test_a_rank_that_says_it_has_loaded_is_sure_and_none_is_told_before_or_after() -> None:
    ready = RankState("Worker_TP1", 1, "weights_loaded", 9)
    held = {"TP0": 60.0, "TP1": 30.0}
    assert told(diagnosis(ranks=(ready,), stage="weights_loaded"), held)["TP1"] == "119/119"
    assert told(diagnosis(stage="torch_compile"), held) == {}
    assert told(diagnosis(progress=None), held) == {}
    assert told(diagnosis(outcome="failed"), held) == {}
    assert told(None, held) == told(diagnosis(), {}) == {}


def test_nothing_is_guessed_across_stages_of_a_pipeline_or_from_a_first_rank_that_holds_nothing() -> None:
    held = {"PP0_TP0": 50.0, "PP0_TP1": 25.0, "PP1_TP0": 80.0}
    assert told(diagnosis(), held) == {"PP0_TP0": "57/119", "PP0_TP1": "~28/119"}
    assert told(diagnosis(), {"TP0": 0.0, "TP1": 3.0}) == {"TP0": "57/119"}
