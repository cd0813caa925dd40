"""What to deploy and how it must behave: the typed form of a profile file.

Pure data. `console.profile.load` makes one from YAML and tells every problem at once; `profile.schema.json` is generated
from these classes. No field holds a command string: flags and environment are structured data, and a secret never
stands in a profile.
"""

from __future__ import annotations

import os
from typing import Annotated, Literal

# no plugin may change how a profile is read, and looking for some in every installed package takes its time
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")

from pydantic import BaseModel, ConfigDict, Field

FlagValue = bool | int | float | str | list[str] | dict[str, object]


class Part(BaseModel):
    """Base of every part of a profile: frozen, and unknown keys are errors."""

    # a part is built into the profile's own schema; one of its own it needs only when it is made alone
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class Model(Part):
    """The checkpoint: which repository at which full commit, and the folder on the node that holds it."""

    repo: str = Field(description="Hub repository, owner/name")
    revision: str = Field(description="Full 40-digit commit; a branch moves, a commit does not")
    folder: str = Field(description="Absolute folder on the node, or ~/…, that holds the download")
    served_name: str = Field(description="Model id that clients ask for, and that /v1/models must show")
    endpoint: str | None = Field(default=None, description="Hub mirror (HF_ENDPOINT); the public hub when absent")


class Engine(Part):
    """The vLLM that serves: one virtual environment per version, never upgraded in place."""

    version: str = Field(description="Exact vLLM version, as its package calls itself")
    venv: str = Field(description="Absolute folder of the virtual environment, or ~/…")
    python: str = Field(default="python3", description="Interpreter that a new environment is made with")
    index_url: str | None = Field(default=None, description="Package index or folder for a new environment")
    packages: tuple[str, ...] = Field(default=(), description="Further requirements for a new environment")


class Variable(Part):
    """One environment variable of the service and where its value comes from."""

    value: str
    source: str = Field(default="profile", description="Where the value comes from, in words")


class Serve(Part):
    """The command line of `vllm serve`, as data."""

    tensor_parallel_size: Annotated[int, Field(ge=1, le=64)]
    flags: dict[str, FlagValue] = Field(
        default_factory=dict,
        description="Further flags without dashes: true for a switch, false for its --no- form, text or numbers, lists "
        "of text, or JSON objects",
    )


class Service(Part):
    """The systemd unit that runs it."""

    unit: str = Field(description="Unit name, ending in .service")
    user: str = Field(default="root", description="Account that the service runs under")
    host: str = Field(default="127.0.0.1", description="Address that the server listens on")
    port: Annotated[int, Field(ge=1, le=65535)] = 8000
    stop_seconds: Annotated[int, Field(ge=5, le=3600)] = Field(
        default=120, description="Seconds between SIGTERM and SIGKILL of the whole cgroup"
    )
    limits: dict[str, str] = Field(default_factory=dict, description="systemd limits, e.g. LimitMEMLOCK: infinity")
    environment_file: str | None = Field(
        default=None,
        description="Absolute path of a 0600 file on the node with secrets as NAME=value lines, e.g. VLLM_API_KEY",
    )


class KvCache(Part):
    policy: Literal["auto", "bfloat16", "fp8"] = "auto"
    in_place: bool = Field(
        default=False,
        description="Edit the download itself where a patch is needed, the original kept beside it, instead of an overlay",
    )


class Space(Part):
    may_remove: tuple[str, ...] = Field(
        default=(), description="Folders that may go when room is needed, in this order"
    )
    reserve_gb: Annotated[float, Field(ge=0)] = Field(default=20, description="GB that stay free after the download")


class Prompt(Part):
    """One sanity question. `expect` is text that the answer must contain, in any case."""

    prompt: str
    expect: str | None = None
    max_tokens: Annotated[int, Field(ge=1, le=4096)] = 64


class Ready(Part):
    stalls: dict[str, float] = Field(
        default_factory=dict, description="Seconds without movement after which a stage counts as hung"
    )
    prompts: tuple[Prompt, ...] = ()


class LoadPoint(Part):
    concurrency: Annotated[int, Field(ge=1)]
    prompts: Annotated[int, Field(ge=1)]
    input_tokens: Annotated[int, Field(ge=1)] = 1024
    output_tokens: Annotated[int, Field(ge=1)] = 256


class Gate(Part):
    """A bound that the load test must keep at one load point; absent bounds are not checked."""

    concurrency: Annotated[int, Field(ge=1)]
    min_output_tokens_per_s: float | None = None
    max_ttft_p99_ms: float | None = None
    max_tpot_p99_ms: float | None = None
    max_itl_p99_ms: float | None = None
    tolerance_percent: float | None = Field(
        default=None, description="How far output tokens/s may fall below the last good release"
    )


class Throughput(Part):
    points: tuple[LoadPoint, ...] = ()
    gates: tuple[Gate, ...] = ()


class Profile(Part):
    """One deployment, in git."""

    name: str
    title: str = ""
    model: Model
    vllm: Engine
    serve: Serve
    environment: dict[str, Variable] = Field(default_factory=dict)
    kv_cache: KvCache = KvCache()
    service: Service
    replaces: tuple[str, ...] = Field(default=(), description="Units to stop before the launch")
    space: Space = Space()
    ready: Ready = Ready()
    throughput: Throughput = Throughput()
    on_failure: Literal["rollback", "hold"] = "rollback"
    deadman_seconds: Annotated[int, Field(ge=0, le=86400)] = Field(
        default=900,
        description="Seconds without a word from the console, during downtime, after which the node itself brings back "
        "what served before; 0 switches that off",
    )
