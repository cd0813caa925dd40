"""The ready gate: health, then identity, then whose port it is, then a generation that makes sense. In this order, since
each answer means nothing without the one before it: an old process may answer with the old model, and a broken kernel
answers 200 with garbage (DOMAIN D15, D28).
"""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from console.deploy import probe
from console.deploy.sanity import sense, shown
from console.errors import Nonsense, NotReady, RelaunchError, Unreachable
from console.node import systemd
from console.node.base import NoSuchFile
from console.node.facts import Facts, Question, read_facts
from console.profile.model import Prompt
from console.text import Secret, clean, plural

if TYPE_CHECKING:
    from console.deploy.step import Context
    from console.node.http import Http

BUILT_IN = (Prompt(prompt="What is the capital of France? Answer with one word.", expect="Paris", max_tokens=64),)
HEALTH_LIMIT = 120.0
"""Seconds from the log's ready line to an answering /health; it is there at once unless something is wrong."""
HEALTH_EVERY = 0.2
GARBAGE_REMEDY = (
    "wrong NVFP4 kernels print garbage without an error line: try --linear-backend marlin, another "
    "--moe-backend, --no-enable-flashinfer-autotune or --enforce-eager, and compare with a smaller tensor parallel size"
)


@dataclass(frozen=True, slots=True)
class Server:
    """What must answer: which unit, on which port, under which name. `served` None: any model will do."""

    unit: str
    port: int
    served: str | None
    invocation: str = ""
    """The start that must own the port; empty: whichever runs now."""


async def until_healthy(ctx: Context, server: Server) -> None:
    """Return when /health answers 200. Raises NotReady after HEALTH_LIMIT, or as soon as the unit is gone.

    HTTP tells nobody when it becomes so, hence the look at intervals; it is one short channel of an open connection.
    """
    http = ctx.node.http(server.port)
    limit = ctx.profile.ready.stalls.get("http_starting", HEALTH_LIMIT)
    status: int | None = None
    try:
        async with asyncio.timeout(limit):
            gone = asyncio.ensure_future(_until_gone(ctx, server.unit))
            try:
                while (status := await probe.health(http)) != 200:
                    await asyncio.wait({gone}, timeout=HEALTH_EVERY)
                    if gone.done():
                        raise NotReady(f"{server.unit} {gone.result()} before it answered", "look at its journal")
            finally:
                gone.cancel()
                await asyncio.wait({gone})
    except TimeoutError as error:
        answer = "nobody answers" if status is None else f"it answers {status}"
        raise NotReady(
            f"/health on port {server.port} is not 200 after {limit:.0f} s: {answer}", "look at the service's log"
        ) from error


async def _until_gone(ctx: Context, unit: str) -> str:
    """How the unit went, in words; waits for as long as it is there."""
    async with systemd.watch_unit(ctx.node, unit) as states:
        async for state in states:
            if not systemd.is_up(state) or state.sub == "auto-restart":
                return f"is {state.active} ({state.result})"
    raise Unreachable(f"the state of {unit} on {ctx.node.name} can no longer be watched")


async def pass_gate(ctx: Context, server: Server, prompts: tuple[Prompt, ...], *, facts: Facts | None = None) -> str:
    """Identity, ownership and sense of what answers on the port; the evidence in words. `facts` are those of this very
    moment, when the caller has just read them.

    Raises NotReady, Nonsense, Unreachable.
    """
    key = await api_key(ctx)
    http = ctx.node.http(server.port)
    if (status := await probe.health(http)) != 200:
        answer = "nobody answers" if status is None else f"it answers {status}"
        raise NotReady(f"/health on port {server.port}: {answer}", f"look at the journal of {server.unit}")
    model = await _identity(http, server, key)
    asked = Question(units=(server.unit,), ports=(server.port,))
    owner = _owner(facts or await read_facts(ctx.node, asked), server)
    said = await _sense(http, model, prompts or BUILT_IN, key)
    return f"health 200, model {model}, port {server.port} owned by {owner}, {said}"


async def _identity(http: Http, server: Server, key: Secret | None) -> str:
    ids = await probe.model_ids(http, key)
    if server.served is not None and server.served not in ids:
        shows = ", ".join(clean(name) for name in ids) or "no model"
        raise NotReady(
            f"the server on port {server.port} serves {shows}, not {server.served}",
            "an old process may still hold the port; look who listens there",
        )
    if not ids:
        raise NotReady(f"the server on port {server.port} serves no model", "look at the service's log")
    return server.served or ids[0]


def _owner(fresh: Facts, server: Server) -> str:
    """That the listener is a process of our unit, and of the start that was launched."""
    mine = [listener for listener in fresh.listeners if listener.port == server.port]
    state = fresh.units.get(server.unit)
    if not mine:
        raise NotReady(f"nobody is seen listening on port {server.port}", "look with: ss -ltnp")
    if state is None or state.active != "active":
        raise NotReady(
            f"port {server.port} answers and {server.unit} is {state.active if state else 'unknown'}",
            "another process holds the port; look with: ss -ltnp",
        )
    if server.invocation and state.invocation != server.invocation:
        raise NotReady(
            f"{server.unit} was started again meanwhile: invocation {state.invocation[:8]} instead of "
            f"{server.invocation[:8]}",
            "look in the journal for who did it, or for a crash that Restart= hid",
        )
    for listener in mine:
        if listener.unit == server.unit:
            return f"pid {listener.pid} of {server.unit}"
    if all(listener.pid is None for listener in mine):
        return "a process that this login may not see"
    other = next(listener for listener in mine if listener.pid is not None)
    raise NotReady(
        f"port {server.port} is held by pid {other.pid} ({clean(other.command)}), which is not of {server.unit}",
        f"that process belongs to {other.unit or 'no unit'}; end it where it was started",
    )


async def _sense(http: Http, model: str, prompts: tuple[Prompt, ...], key: Secret | None) -> str:
    first = ""
    for prompt in prompts:
        answer = await probe.generate(http, model, prompt.prompt, prompt.max_tokens, key)
        if reason := sense(answer.text, prompt.prompt, prompt.expect):
            raise Nonsense(
                f"{model} generates nonsense: the answer to {shown(prompt.prompt, 60)} {reason}: {shown(answer.text)}",
                GARBAGE_REMEDY,
            )
        first = first or shown(answer.text, 40)
    return f"{plural(len(prompts), 'answer')} made sense: {first}"


async def api_key(ctx: Context) -> Secret | None:
    """VLLM_API_KEY out of the unit's 0600 environment file; None when the profile names none or it holds none."""
    path = ctx.profile.service.environment_file
    if path is None:
        return None
    try:
        text = (await ctx.node.read(ctx.facts.path(path), sudo=True, limit=1 << 16)).decode(errors="replace")
    except NoSuchFile:
        return None
    match = re.search(r"^\s*(?:export\s+)?VLLM_API_KEY=(.*)$", text, re.MULTILINE)
    return Secret(match[1].strip().strip("\"'")) if match else None


async def probe_serving(ctx: Context, *, facts: Facts | None = None) -> bool:
    """A live look at what `already_serving` only reads: at most three requests and one exec, which the `facts` of this very
    moment save. A failure is remembered in
    `ctx.found["serving"]`, so that a server that systemd has as active and that answers nothing is launched again."""
    unit = ctx.facts.units.get(ctx.profile.service.unit)
    server = wanted(ctx, unit.invocation if unit else "")
    try:
        ctx.found["ready_evidence"] = await pass_gate(ctx, server, ctx.profile.ready.prompts[:1], facts=facts)
    except Unreachable:
        raise
    except RelaunchError as error:
        ctx.found["serving"] = False
        ctx.found["ready_evidence"] = error.message
        return False
    return True


def wanted(ctx: Context, invocation: str = "") -> Server:
    """The server that the profile asks for."""
    service = ctx.profile.service
    return Server(service.unit, service.port, ctx.profile.model.served_name, invocation)


def since(started: object) -> float | None:
    """Seconds since a UNIX time; None when it is unknown or lies ahead."""
    if not isinstance(started, int | float):
        return None
    seconds = time.time() - started
    return seconds if seconds >= 0 else None
