"""Everything that a redeploy wants to know of a node, as one question: one script, one exec."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields

from console.checkpoint.question import question as about_files
from console.deploy.release import question as about_releases
from console.deploy.steps.engine import question as about_engine
from console.node.facts import Question
from console.profile.model import Profile


def redeploy_question(profile: Profile) -> Question:
    """What the fourteen steps look at."""
    ours = Question(
        venvs=(profile.vllm.venv,),
        disks=(profile.model.folder, profile.vllm.venv, "state:/"),
        units=(profile.service.unit, *profile.replaces),
        ports=(profile.service.port,),
        read=("state:/cache/*.json",),
    )
    return merged((ours, about_engine(profile), about_files(profile), about_releases(profile)))


def merged(questions: Iterable[Question]) -> Question:
    """One question that asks everything the given ones ask, each thing once."""
    asked = tuple(questions)
    return Question(
        **{
            field.name: tuple(dict.fromkeys(item for question in asked for item in getattr(question, field.name)))
            for field in fields(Question)
        }
    )
