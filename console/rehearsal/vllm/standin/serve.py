"""`vllm serve`: the API server process. Takes the port, starts the engine, serves, and stops as vLLM stops.

Stopping, measured on 0.32 (VLLM-LAB): idle, a SIGTERM ends it at once with code 0; the first SIGTERM of a load is swallowed,
a second ends it; under load a real one hangs in 4 of 9 tries, here only with the fault `slow-stop`.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
import tempfile
from typing import Any

from .flags import non_default
from .gpu_state import practice_root
from .launch import Launch, resolve
from .listener import Listener
from .log import Log
from .model import Failure
from .pace import Pace
from .process import Channel, reap, spawn
from .tracebacks import API, render
from .versions import Traits

_BANNER = (
    "",
    "       █     █     █▄   ▄█",
    " ▄▄ ▄█ █     █     █ ▀▄▀ █  version {version}",
    "  █▄█▀ █     █     █     █  model   {model}",
    "   ▀▀  ▀▀▀▀▀ ▀▀▀▀▀ ▀     ▀",
    "",
)


class Terminated(Exception):
    """The signal that ends a start."""


class Patience:
    """Signals while the engine starts: the first is swallowed, the second ends the start."""

    def __init__(self) -> None:
        self.seen = 0
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._signalled)

    def _signalled(self, *_: object) -> None:
        self.seen += 1
        if self.seen > 1:
            raise Terminated


def _deaf() -> None:
    """The end has begun: further signals change nothing."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


def _unknown_variables() -> list[str]:
    """Variables named VLLM_… that this version does not know; none where the installer left no table."""
    try:
        known = importlib.import_module(".envs", __package__).environment_variables
    except ImportError:
        return []
    return sorted(name for name in os.environ if name.startswith("VLLM_") and name not in known)


def serve(args: argparse.Namespace, parser: argparse.ArgumentParser, traits: Traits) -> int:
    """Run a server; returns the exit code of the process."""
    root = practice_root()
    log = Log(traits, "APIServer", _lock())
    path = args.model_tag or args.model
    banner = "\n".join(_BANNER).format(version=traits.version, model=path)
    log.info(traits.where("utils.py"), banner)
    log.info(f"utils.py:{traits.lines['args']}", f"non-default args: {non_default(args, parser)}")
    pace = Pace(root)
    if traits.at_least(0, 18):
        for name in _unknown_variables():
            log.warning("envs.py:1755", f"Unknown vLLM environment variable detected: {name}")
    try:
        listener = Listener(root, args.host or "0.0.0.0", args.port)
    except OSError as error:
        log.raw(render(API["bind"], f"OSError: [Errno {error.errno}] {os.strerror(error.errno or 0)}"))
        return 1
    try:
        launch = resolve(args, traits, root, pace, log)
    except Failure as failure:
        listener.close()
        log.raw(render(API["config"], f"{failure.kind}: {failure.text}"))
        return 1
    return _with_engine(launch, log, listener)


def _lock() -> int:
    """A descriptor that every process of the server can lock; -1 where none can be had."""
    try:
        fd, name = tempfile.mkstemp(prefix="vllm-log-")
        os.unlink(name)
    except OSError:
        return -1
    return fd


def _with_engine(launch: Launch, log: Log, listener: Listener) -> int:
    traits = launch.traits
    mine, theirs = Channel.pair()

    def run_engine() -> int:
        mine.close()
        listener.sock.close()
        from .engine import Engine

        return Engine(launch, log.forked(traits.engine_name), theirs).run()

    Patience()
    launch.pace.pause(0.2)
    pid = spawn(run_engine, "VLLM::EngineCore")
    theirs.close()
    try:
        ready = mine.receive()
    except Terminated:
        _deaf()
        os.kill(pid, signal.SIGTERM)
        reap(pid)
        listener.close()
        log.raw(render(API["engine"][:-1], "KeyboardInterrupt: terminated"))
        return 1
    if ready is None:
        code = reap(pid)
        listener.close()
        failed = "{}" if traits.release < (0, 18, 0) else f"{{'{traits.engine_name}': {code}}}" if code else "{}"
        text = f"RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {failed}"
        log.raw(render(API["engine"], text))
        if traits.wraps_streams:
            log.foreign(
                f"{sys.base_prefix}/lib/python{sys.version_info.major}.{sys.version_info.minor}/multiprocessing/resource_tracker.py:254: UserWarning: resource_tracker: There "
                "appear to be 2 leaked shared_memory objects to clean up at shutdown\n  warnings.warn('resource_tracker: There "
                "appear to be %d '"
            )
        return 1
    return _up(launch, log, listener, mine, pid, ready)


def _up(launch: Launch, log: Log, listener: Listener, engine: Channel, pid: int, ready: dict[str, Any]) -> int:
    """Stages 20 to 23: announce the routes and serve."""
    from .api import ROUTES
    from .server import run_server

    traits, args = launch.traits, launch.args
    where = traits.where("entry.py") if traits.at_least(0, 30) else traits.where("api_server.py")
    log.info(where, "Supported tasks: ['generate']")
    if launch.model.generation:
        text = (
            "Default vLLM sampling parameters have been overridden by the model's `generation_config.json`: "
            f"`{_sampling(launch.model.generation)}`. If this is not intended, please relaunch vLLM instance with "
            "`--generation-config vllm`."
        )
        log.warning("model.py:1355", text)
    log.info(where, f"{traits.api_start} http://{args.host or '0.0.0.0'}:{args.port}")
    log.info(traits.where("launcher.py"), "Available routes are:")
    for path, methods in ROUTES:
        log.info(f"launcher.py:{traits.lines['route']}", f"Route: {path}, Methods: {methods}")
    code = run_server(launch, log, listener, engine, ready)
    _deaf()
    engine.close()
    reap(pid)
    return code


def _sampling(generation: dict[str, Any]) -> dict[str, Any]:
    return {key: generation[key] for key in ("temperature", "top_k", "top_p") if key in generation}
