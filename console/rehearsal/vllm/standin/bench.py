"""`vllm bench serve`: sends the requests, streaming, at the asked concurrency, and measures what comes back.

Random prompts of a fixed length from a seed. A request counts as failed when its answer is no 200, ends early or holds an error.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from ._version import __version__
from .bench_report import result_json, result_name, table
from .flags import FlexibleArgumentParser, help_word, show_help
from .gpu_state import practice_root
from .listener import practising
from .versions import release_of

_WORDS = (
    "time",
    "model",
    "server",
    "token",
    "memory",
    "window",
    "number",
    "letter",
    "garden",
    "engine",
    "river",
    "paper",
)


@dataclass
class Measured:
    """One request as the client saw it; times in seconds."""

    prompt_tokens: int
    started: float
    ok: bool = False
    ttft: float = 0.0
    itls: list[float] = field(default_factory=list)
    latency: float = 0.0
    tokens: int = 0
    text: str = ""
    error: str = ""


class RequestFailed(Exception):
    """The server's answer is no success."""


def make_parser() -> FlexibleArgumentParser:
    """The options of `vllm bench serve` that a load test uses."""
    parser = FlexibleArgumentParser(
        prog="vllm bench serve",
        usage="vllm bench serve [options]",
        description="Benchmark the online serving throughput.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--backend", default="openai", choices=("openai", "openai-chat", "vllm"))
    add("--endpoint-type", default=None, choices=("openai", "openai-chat", "vllm"))
    add("--base-url", default=None)
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=8000)
    add("--endpoint", default="/v1/completions")
    add("--header", nargs="*", default=[])
    add("--model", default=None)
    add("--served-model-name", default=None)
    add("--tokenizer", default=None)
    add("--tokenizer-mode", default="auto")
    add("--trust-remote-code", action="store_true")
    add("--dataset-name", default="random", choices=("random", "sharegpt", "sonnet", "custom"))
    add("--random-input-len", "--input-len", type=int, default=1024)
    add("--random-output-len", "--output-len", type=int, default=128)
    add("--random-range-ratio", type=float, default=0.0)
    add("--random-prefix-len", type=int, default=0)
    add("--num-prompts", type=int, default=1000)
    add("--num-warmups", type=int, default=0)
    add("--max-concurrency", type=int, default=None)
    add("--request-rate", type=float, default=float("inf"))
    add("--burstiness", type=float, default=1.0)
    add("--seed", type=int, default=0)
    add("--ignore-eos", action="store_true")
    add("--temperature", type=float, default=None)
    add("--top-p", type=float, default=None)
    add("--extra-body", type=json.loads, default=None)
    add("--disable-tqdm", action="store_true")
    add("--percentile-metrics", default="ttft,tpot,itl")
    add("--metric-percentiles", default="99")
    add("--goodput", nargs="+", default=None)
    add("--save-result", action="store_true")
    add("--save-detailed", action="store_true")
    add("--append-result", action="store_true")
    add("--result-dir", default=None)
    add("--result-filename", default=None)
    add("--metadata", nargs="*", default=[], metavar="KEY=VALUE")
    add("--label", default=None)
    add("--ready-check-timeout-sec", type=int, default=600)
    return parser


def main(argv: list[str]) -> int:
    """Run a load test; returns the exit code."""
    parser = make_parser()
    word = help_word(argv)
    if word is not None:
        show_help(parser, word, "bench serve")
    args = parser.parse_args(argv)
    for pair in args.metadata:
        if "=" not in pair:
            print("Invalid metadata format. Please use KEY=VALUE format.", file=sys.stderr)
            return 1
    print(args)
    tokenizer = args.tokenizer or args.model or ""
    if not os.path.isdir(tokenizer) or not any(name.startswith("tokenizer") for name in os.listdir(tokenizer)):
        print(
            f"OSError: Can't load tokenizer for '{tokenizer}'. If you were trying to load it from 'https://huggingface.co/models', "
            "make sure you don't have a local directory with the same name. Otherwise, make sure it is the correct path to a "
            "directory containing all relevant files for a tokenizer.",
            file=sys.stderr,
        )
        return 1
    return asyncio.run(Bench(args).run())


class Bench:
    """One load test."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        base = urlsplit(args.base_url or f"http://{args.host}:{args.port}")
        self.host, self.port = base.hostname or "127.0.0.1", base.port or 80
        self.socket = os.path.realpath(practice_root() / "net" / f"{self.port}.sock")
        self.random = random.Random(args.seed)
        self.running = 0
        self.peak = 0

    async def run(self) -> int:
        """The first request alone, the warm-up, the load, the report."""
        args = self.args
        print("Starting initial single prompt test run...")
        first = await self._ready()
        if not first.ok:
            print(
                "ValueError: Initial test run failed - Please make sure benchmark arguments are correctly specified. "
                f"Error: {first.error}",
                file=sys.stderr,
            )
            return 1
        print("Initial test run completed. Starting main benchmark run...")
        if args.num_warmups:
            print(f"Warming up with {args.num_warmups} requests...")
            await self._all([self._prompt() for _ in range(args.num_warmups)], quiet=True)
            print("Warmup run completed.")
        prompts = [self._prompt() for _ in range(args.num_prompts)]
        print(f"Traffic request rate: {args.request_rate}")
        print(f"Burstiness factor: {args.burstiness} (Poisson process)")
        print(f"Maximum request concurrency: {args.max_concurrency}")
        started = time.perf_counter()
        self.peak = 0
        results = await self._all(prompts)
        duration = time.perf_counter() - started
        data = result_json(args, results, duration, self.peak, release_of(__version__))
        print(table(args, data))
        if args.save_result or args.append_result:
            self._save(data)
        for result in results:
            if not result.ok:
                print(f"Error in request: {result.error}", file=sys.stderr)
                break
        return 0

    def _save(self, data: dict[str, Any]) -> None:
        name = self.args.result_filename or result_name(self.args)
        folder = self.args.result_dir
        if folder:
            os.makedirs(folder, exist_ok=True)
            name = os.path.join(folder, name)
        with open(name, "a" if self.args.append_result else "w", encoding="utf-8") as file:
            json.dump(data, file)
            if self.args.append_result:
                file.write("\n")

    def _prompt(self) -> tuple[str, int]:
        """Random words, one token each."""
        ratio, length = self.args.random_range_ratio, self.args.random_input_len
        if ratio:
            length = self.random.randint(int(length * (1 - ratio)), int(length * (1 + ratio)))
        words = [f"{self.random.choice(_WORDS)}{self.random.randrange(10_000)}" for _ in range(max(1, length))]
        return " ".join(words), len(words)

    async def _ready(self) -> Measured:
        deadline = time.monotonic() + self.args.ready_check_timeout_sec
        while True:
            result = await self._one(*self._prompt())
            refused = result.error.startswith(("ConnectionRefused", "FileNotFound"))
            if result.ok or not refused or time.monotonic() > deadline:
                return result
            await asyncio.sleep(1)

    async def _all(self, prompts: list[tuple[str, int]], *, quiet: bool = False) -> list[Measured]:
        gate = asyncio.Semaphore(self.args.max_concurrency or len(prompts) or 1)
        done = 0

        async def one(prompt: str, length: int) -> Measured:
            nonlocal done
            async with gate:
                self.running += 1
                self.peak = max(self.peak, self.running)
                try:
                    return await self._one(prompt, length)
                finally:
                    self.running -= 1
                    done += 1
                    if not quiet and not self.args.disable_tqdm:
                        sys.stderr.write(
                            f"\r{100 * done // len(prompts):3d}%|{'█' * (10 * done // len(prompts)):<10}| {done}/{len(prompts)}"
                        )
                        sys.stderr.flush()

        waiting = []
        for prompt, length in prompts:
            waiting.append(asyncio.ensure_future(one(prompt, length)))
            if self.args.request_rate != float("inf"):
                await asyncio.sleep(self.random.expovariate(self.args.request_rate))
        results = list(await asyncio.gather(*waiting))
        if not quiet and not self.args.disable_tqdm:
            sys.stderr.write("\n")
        return results

    async def _one(self, prompt: str, length: int) -> Measured:
        result = Measured(length, time.perf_counter())
        try:
            await self._stream(prompt, result)
            result.ok = True
        except RequestFailed as error:
            result.error = str(error)
        except (OSError, ValueError, asyncio.IncompleteReadError) as error:
            result.error = f"{type(error).__name__}: {error}"
        return result

    async def _stream(self, prompt: str, result: Measured) -> None:
        reader, writer = await self._connect()
        try:
            writer.write(self._request(prompt))
            await writer.drain()
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            status = head.split(" ", 2)[1]
            if status != "200":
                raise RequestFailed(
                    f"{head.splitlines()[0].split(' ', 1)[1]}: {(await reader.read(2000)).decode('utf-8', 'replace')}"
                )
            await self._events(reader, result)
        finally:
            writer.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if practising():
            return await asyncio.open_unix_connection(self.socket, limit=1 << 20)
        return await asyncio.open_connection(self.host, self.port, limit=1 << 20)

    def _request(self, prompt: str) -> bytes:
        args = self.args
        chat = (args.endpoint_type or args.backend) == "openai-chat" or args.endpoint.endswith("chat/completions")
        body: dict[str, Any] = {
            "model": args.served_model_name or args.model,
            "max_tokens": args.random_output_len,
            "temperature": 0.0 if args.temperature is None else args.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
            **({"ignore_eos": True} if args.ignore_eos else {}),
            **(args.extra_body or {}),
        }
        body |= {"messages": [{"role": "user", "content": prompt}]} if chat else {"prompt": prompt}
        data = json.dumps(body).encode()
        headers = [
            f"POST {args.endpoint} HTTP/1.1",
            f"Host: {self.host}:{self.port}",
            "Content-Type: application/json",
            "Connection: close",
        ]
        key = os.environ.get("OPENAI_API_KEY")
        if key:
            headers.append(f"Authorization: Bearer {key}")
        return ("\r\n".join([*headers, f"Content-Length: {len(data)}"]) + "\r\n\r\n").encode() + data

    async def _events(self, reader: asyncio.StreamReader, result: Measured) -> None:
        """Read the chunked event stream and time each token."""
        last, buffer, ended = result.started, b"", False
        while size := int((await reader.readline()).split(b";")[0] or b"0", 16):
            buffer += await reader.readexactly(size)
            await reader.readline()
            while b"\n\n" in buffer:
                event, _, buffer = buffer.partition(b"\n\n")
                data = event.removeprefix(b"data: ").strip()
                if data == b"[DONE]":
                    ended = True
                    continue
                message = json.loads(data)
                if "error" in message:
                    raise RequestFailed(str(message["error"].get("message")))
                if message.get("usage"):
                    result.tokens = int(message["usage"]["completion_tokens"])
                piece = _text(message)
                if not piece:
                    continue
                now = time.perf_counter()
                if result.ttft == 0.0:
                    result.ttft = now - result.started
                else:
                    result.itls.append(now - last)
                last = now
                result.text += piece
        result.latency = last - result.started
        if not ended or result.ttft == 0.0:
            raise RequestFailed(
                "Never received a valid chunk to calculate TTFT. This response will be marked as failed!"
            )


def _text(message: dict[str, Any]) -> str:
    choices = message.get("choices") or []
    if not choices:
        return ""
    return str(choices[0].get("text") or (choices[0].get("delta") or {}).get("content") or "")
