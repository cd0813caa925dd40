"""The serving half of the API server: the event loop, the access log, the stop."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
from collections.abc import Callable
from typing import Any

from .api import Api
from .http_server import Call, converse
from .launch import Launch
from .listener import Listener
from .log import Log
from .process import Channel
from .scheduler import Scheduler

_ENGINE_DEAD_SECONDS = 5.0
"""Between the engine's death and the server's own end, as measured."""


class Server:
    """One running server."""

    def __init__(self, launch: Launch, log: Log, listener: Listener, engine: Channel, ready: dict[str, Any]) -> None:
        self.launch = launch
        self.log = log
        self.listener = listener
        self.engine = engine
        tokens = int(ready["tokens"])
        garbage = launch.has("garbage") or bool(ready.get("broken"))
        self.scheduler = Scheduler(
            pace=launch.pace.tokens,
            max_seqs=launch.args.max_num_seqs or 256,
            batch=launch.args.max_num_batched_tokens or 8192,
            capacity=tokens,
            changed=self._load_changed,
        )
        max_len = launch.max_len if launch.max_len > 0 else min(launch.model.max_len, tokens)
        self.api = Api(launch, self.scheduler, max_len=max_len, garbage=garbage)
        self.stopping = asyncio.Event()
        self.engine_gone = asyncio.Event()

    async def run(self) -> int:
        """Serve until a signal or the engine's end; returns the exit code."""
        loop = asyncio.get_running_loop()
        self.engine.sock.setblocking(False)
        loop.add_reader(self.engine.fileno(), self._engine_says)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stopping.set)
        connections: set[asyncio.StreamWriter] = set()
        server = await self._listen(connections)
        self.log.raw(f"INFO:     Started server process [{os.getpid()}]")
        self.log.raw("INFO:     Waiting for application startup.")
        self.log.raw("INFO:     Application startup complete.")
        background = [asyncio.ensure_future(part) for part in (self.scheduler.run(), self._report())]
        try:
            stop, gone = (asyncio.ensure_future(event.wait()) for event in (self.stopping, self.engine_gone))
            await asyncio.wait((stop, gone), return_when=asyncio.FIRST_COMPLETED)
            if not self.stopping.is_set():
                await self._engine_died(stop)
            await self._stop(server, connections)
        finally:
            loop.remove_reader(self.engine.fileno())
            for part in (*background, stop, gone):
                part.cancel()
        return 0

    async def _listen(self, connections: set[asyncio.StreamWriter]) -> asyncio.Server:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connections.add(writer)
            client = f"127.0.0.1:{random.randrange(32768, 60999)}"

            def access(call: Call, status: int) -> None:
                if not self.launch.args.disable_uvicorn_access_log:
                    phrase = {200: "OK", 404: "Not Found", 400: "Bad Request", 401: "Unauthorized"}.get(status, "Error")
                    self.log.raw(f'INFO:     {client} - "{call.method} {call.path} HTTP/1.1" {status} {phrase}')

            try:
                await converse(reader, writer, self.api.handle, access)
            finally:
                connections.discard(writer)

        sock = self.listener.sock
        if sock.family == socket.AF_UNIX:
            server = await asyncio.start_unix_server(connected, sock=sock, limit=1 << 20)
        else:
            server = await asyncio.start_server(connected, sock=sock, limit=1 << 20)
        self.listener.listening()
        return server

    def _load_changed(self, running: int) -> None:
        percent = 0 if running == 0 else min(100, 55 + running * 5)
        self.engine.sock.setblocking(True)
        self.engine.send({"do": "busy", "percent": percent})
        self.engine.sock.setblocking(False)

    def _engine_says(self) -> None:
        try:
            data = self.engine.sock.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self.engine.fileno())
            self.engine_gone.set()

    async def _engine_died(self, stop: asyncio.Future[Any]) -> None:
        """The engine was killed: /health turns 503, requests fail, and the process ends by itself, with code 0."""
        # a unit's stop signals every process at once, and the engine may go first
        await asyncio.wait((stop,), timeout=0.2)
        if stop.done():
            return
        name = self.launch.traits.engine_name
        self.log.error("core_client.py:598", f"Engine core proc {name} died unexpectedly, shutting down client.")
        self.api.dead = True
        self.scheduler.frozen = True
        self.log.error(
            "async_llm.py:540",
            "AsyncLLM output_handler failed.\nTraceback (most recent call last):\n"
            "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.",
        )
        self.scheduler.abort_all()
        await asyncio.wait((stop,), timeout=_ENGINE_DEAD_SECONDS)

    async def _stop(self, server: asyncio.Server, connections: set[asyncio.StreamWriter]) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, lambda: None)
        timeout = int(getattr(self.launch.args, "shutdown_timeout", 0) or 0)
        if timeout and (self.scheduler.running or self.scheduler.waiting):
            self.api.draining = True
            await self._until(lambda: not self.scheduler.running and not self.scheduler.waiting, timeout)
        self.log.raw("INFO:     Shutting down")
        server.close()
        self.listener.close()
        self.scheduler.frozen = True
        self.engine.sock.setblocking(True)
        self.engine.send({"do": "stop"})
        if self.launch.has("slow-stop"):
            # what 4 of 9 stops under load do: the engine is gone, the server waits for its clients for ever
            self.log.raw("INFO:     Waiting for connections to close. (CTRL+C to force quit)")
            await asyncio.Event().wait()
        self.scheduler.abort_all()
        await self._until(lambda: not connections, 0.2)
        for writer in list(connections):
            writer.close()
        self.log.raw("INFO:     Waiting for application shutdown.")
        self.log.raw("INFO:     Application shutdown complete.")
        self.log.raw(f"INFO:     Finished server process [{os.getpid()}]")

    @staticmethod
    async def _until(true: Callable[[], bool], seconds: float) -> None:
        deadline = asyncio.get_running_loop().time() + seconds
        # the end of every connection has no single event
        while not true() and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async def _report(self) -> None:
        """The engine's statistics line, every ten seconds while there is or was work."""
        interval = float(os.environ.get("VLLM_LOG_STATS_INTERVAL") or 10)
        before = (0, 0)
        quiet = True
        while True:
            await asyncio.sleep(interval)
            stats = self.scheduler.stats
            now = (stats.prompt_tokens, stats.generation_tokens)
            moved = now != before or bool(self.scheduler.running)
            if (moved or not quiet) and not self.launch.args.disable_log_stats:
                self.log.info(
                    self.launch.traits.where("loggers.py"),
                    f"Engine 000: Avg prompt throughput: {(now[0] - before[0]) / interval:.1f} tokens/s, Avg generation "
                    f"throughput: {(now[1] - before[1]) / interval:.1f} tokens/s, Running: {len(self.scheduler.running)} reqs, "
                    f"Waiting: {len(self.scheduler.waiting)} reqs, GPU KV cache usage: {self.scheduler.kv_usage * 100:.1f}%, "
                    "Prefix cache hit rate: 0.0%",
                )
            quiet, before = not moved, now


def run_server(launch: Launch, log: Log, listener: Listener, engine: Channel, ready: dict[str, Any]) -> int:
    """Serve; returns the exit code."""

    async def main() -> int:
        return await Server(launch, log, listener, engine, ready).run()

    return asyncio.run(main())
