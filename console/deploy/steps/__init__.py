"""The steps of a redeploy, one file per step, in the order that keeps the old model serving longest."""

from __future__ import annotations

from importlib import import_module

from console.deploy.step import Step

ORDER: tuple[str, ...] = (
    "inspect",
    "preflight",
    "engine",
    "space",
    "download",
    "shards",
    "patch",
    "unit",
    "stop",
    "drain",
    "launch",
    "ready",
    "throughput",
    "keep",
)

SUMMARIES: dict[str, str] = {
    "inspect": "read what the node is and holds",
    "preflight": "refuse what cannot work while the old model still serves",
    "engine": "the wanted vLLM in an environment of its own",
    "space": "enough room for the download",
    "download": "every file of the pinned commit",
    "shards": "index, sizes and hashes match",
    "patch": "the KV-cache decision, as flag or overlay",
    "unit": "the systemd unit, as rendered",
    "stop": "the old service, stopped and gone",
    "drain": "every GPU back at its idle level",
    "launch": "the new service, started and followed through its stages",
    "ready": "health, identity, port and a sensible generation",
    "throughput": "the load points, against the gates",
    "keep": "the release becomes the last good one",
    "rollback": "what served before, brought back and proved to serve",
}


def step(name: str) -> Step:
    """The step called `name`, one of `ORDER`."""
    loaded: Step = import_module(f"console.deploy.steps.{name}").STEP
    return loaded
