"""The routes of the OpenAI API that operators and load tests use, over the pretended scheduler."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

from . import generation
from .http_server import Call, Reply, json_reply
from .launch import Launch
from .prometheus import Metrics
from .scheduler import Request, Scheduler

ROUTES = (
    ("/openapi.json", "GET, HEAD"), ("/docs", "GET, HEAD"), ("/tokenize", "POST"), ("/detokenize", "POST"), ("/load", "GET"),
    ("/version", "GET"), ("/health", "GET"), ("/metrics", "GET"), ("/v1/models", "GET"), ("/ping", "GET"), ("/ping", "POST"),
    ("/v1/chat/completions", "POST"), ("/v1/responses", "POST"), ("/v1/completions", "POST"), ("/v1/messages", "POST"),
)  # fmt: skip


class Api:
    """Answers of one server. `dead`: the engine is gone; `draining`: no new requests are taken."""

    def __init__(self, launch: Launch, scheduler: Scheduler, *, max_len: int, garbage: bool) -> None:
        self.launch = launch
        self.scheduler = scheduler
        self.metrics = Metrics(launch.names[0], scheduler)
        self.max_len = max_len
        self.garbage = garbage
        self.dead = False
        self.draining = False
        self._created = int(time.time())
        keys = launch.args.api_key or ([os.environ["VLLM_API_KEY"]] if os.environ.get("VLLM_API_KEY") else [])
        self._keys = frozenset(keys)

    async def handle(self, call: Call) -> Reply:
        """The answer to one call; what is no route is a 404."""
        if call.path.startswith("/v1") and self._keys:
            given = call.headers.get("authorization", "")
            if given.removeprefix("Bearer ") not in self._keys:
                return json_reply({"error": "Unauthorized"}, 401)
        match call.method, call.path:
            case "GET", "/health" | "/ping":
                return Reply(503 if self.dead else 200)
            case "GET", "/v1/models":
                return json_reply({"object": "list", "data": [self._card(name) for name in self.launch.names]})
            case "GET", "/version":
                return json_reply({"version": self.launch.traits.version})
            case "GET", "/load":
                return json_reply({"server_load": len(self.scheduler.running)})
            case "GET", "/metrics":
                return Reply(200, self.metrics.text().encode(), "text/plain; version=1.0.0; charset=utf-8")
            case "POST", "/tokenize":
                return self._tokenize(call)
            case "POST", "/v1/completions":
                return await self._complete(call, chat=False)
            case "POST", "/v1/chat/completions":
                return await self._complete(call, chat=True)
        known = any(path == call.path for path, _ in ROUTES)
        return json_reply({"detail": "Method Not Allowed" if known else "Not Found"}, 405 if known else 404)

    def _card(self, name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": "vllm",
            "root": self.launch.model.path,
            "parent": None,
            "max_model_len": self.max_len,
            "permission": [],
        }

    def _tokenize(self, call: Call) -> Reply:
        try:
            text = json.loads(call.body).get("prompt") or ""
        except ValueError:
            return _error("invalid JSON", 400)
        count = generation.prompt_tokens(text)
        return json_reply({"count": count, "max_model_len": self.max_len, "tokens": list(range(count))})

    async def _complete(self, call: Call, *, chat: bool) -> Reply:
        try:
            asked = json.loads(call.body)
            assert isinstance(asked, dict)
        except (ValueError, AssertionError):
            return _error("[{'type': 'json_invalid', 'msg': 'JSON decode error'}]", 400)
        if self.dead:
            return _error(
                "EngineCore encountered an issue. See stack trace (above) for the root cause.",
                500,
                "InternalServerError",
            )
        if self.draining:
            return _error("The server is shutting down.", 500, "InternalServerError")
        name = asked.get("model") or self.launch.names[0]
        if name not in self.launch.names:
            return _error(f"The model `{name}` does not exist.", 404, "NotFoundError", "model")
        prompt: Any = _chat_text(asked.get("messages")) if chat else asked.get("prompt", "")
        if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
            prompt = prompt[0]
        length = generation.prompt_tokens(prompt) + (8 if chat else 0)
        room = self.max_len - length
        default = room if chat else 16
        tokens = int(asked.get("max_completion_tokens") or asked.get("max_tokens") or default)
        if tokens < 1:
            return _error(f"max_tokens must be at least 1, got {tokens}.", 400)
        if tokens > room:
            return _error(
                f"This model's maximum context length is {self.max_len} tokens. However, you requested {tokens + length} tokens "
                f"({length} in the messages, {tokens} in the completion). Please reduce the length of the messages or completion.",
                400,
            )
        text = prompt if isinstance(prompt, str) else ""
        made = generation.pieces(text, chat=chat, garbage=self.garbage, ignore_eos=bool(asked.get("ignore_eos")))
        request = Request(max(1, length), tokens, made)
        self.scheduler.add(request)
        usage = bool((asked.get("stream_options") or {}).get("include_usage"))
        if asked.get("stream"):
            stream = self._stream(request, name, chat=chat, usage=usage)
            return Reply(200, b"", "text/event-stream; charset=utf-8", stream)
        return await self._whole(request, name, chat=chat)

    async def _whole(self, request: Request, name: str, *, chat: bool) -> Reply:
        parts = []
        while (piece := await request.queue.get()) is not None:
            parts.append(piece)
        if request.finish == "abort":
            return _error(
                "EngineCore encountered an issue. See stack trace (above) for the root cause.",
                500,
                "InternalServerError",
            )
        text = "".join(parts)
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": request.finish, "stop_reason": None}
        if chat:
            text = text.lstrip()
            choice["message"] = {
                "role": "assistant",
                "content": text,
                "refusal": None,
                "tool_calls": [],
                "reasoning": None,
            }
        else:
            choice["text"] = text
        data = self._frame(name, chat=chat, stream=False)
        return json_reply({**data, "choices": [choice], "usage": _usage(request)})

    async def _stream(self, request: Request, name: str, *, chat: bool, usage: bool) -> AsyncIterator[bytes]:
        frame = self._frame(name, chat=chat, stream=True)
        try:
            if chat:
                yield _event(
                    {
                        **frame,
                        "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}],
                    }
                )
            sent = 0
            while (piece := await request.queue.get()) is not None:
                sent += 1
                yield _event(
                    {**frame, "choices": [_delta(piece, "length" if sent >= request.max_tokens else None, chat=chat)]}
                )
            if request.finish == "stop":
                yield _event({**frame, "choices": [_delta("", "stop", chat=chat)]})
            elif request.finish == "abort":
                yield _event(
                    {
                        "error": {
                            "message": "EngineCore encountered an issue.",
                            "type": "InternalServerError",
                            "code": 500,
                        }
                    }
                )
            if usage:
                yield _event({**frame, "choices": [], "usage": _usage(request)})
            yield b"data: [DONE]\n\n"
        finally:
            request.aborted = True

    def _frame(self, name: str, *, chat: bool, stream: bool) -> dict[str, Any]:
        kind = ("chat.completion.chunk" if stream else "chat.completion") if chat else "text_completion"
        return {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex}",
            "object": kind,
            "created": int(time.time()),
            "model": name,
        }


def _delta(piece: str, finish: str | None, *, chat: bool) -> dict[str, Any]:
    body: dict[str, Any] = {"delta": {"content": piece}} if chat else {"text": piece}
    return {"index": 0, **body, "logprobs": None, "finish_reason": finish}


def _event(data: object) -> bytes:
    return b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"


def _usage(request: Request) -> dict[str, Any]:
    return {
        "prompt_tokens": request.prompt,
        "total_tokens": request.prompt + request.generated,
        "completion_tokens": request.generated,
        "prompt_tokens_details": None,
    }


def _error(message: str, code: int, kind: str = "BadRequestError", param: str | None = None) -> Reply:
    return json_reply({"error": {"message": message, "type": kind, "param": param, "code": code}}, code)


def _chat_text(messages: object) -> str:
    """The last user message's text."""
    if not isinstance(messages, list):
        return ""
    for message in reversed(messages):
        if isinstance(message, dict) and message.get("role") == "user":
            content = message.get("content")
            if isinstance(content, list):
                return " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
            return str(content or "")
    return ""
