"""What a server on the node answers: health, its models, one generation.

Each function makes one request, raises `NotReady` with what came back instead, and lets nothing of it through unclean. A
request that the server answered with 5xx is told from one that nobody answered: the first may have killed the engine.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from console.deploy.sanity import shown
from console.errors import NotReady
from console.node.http import Http, NoReply
from console.text import Secret, clean

HEALTH_TIMEOUT = 5.0
MODELS_TIMEOUT = 15.0
GENERATION_TIMEOUT = 300.0
"""Seconds for one answer; the first one at a new shape may compile kernels for minutes."""
_KEY = "the server asks for an API key; name the file that holds VLLM_API_KEY in the profile's service.environment_file"


@dataclass(frozen=True, slots=True)
class Answer:
    """One generation. `text` is everything that the model wrote, its reasoning first; `tokens` is None when unknown."""

    text: str
    tokens: int | None
    finish: str


class NoAnswer(NotReady):
    """Nothing usable came back. `status` is the HTTP status, None when nobody answered."""

    def __init__(self, message: str, remedy: str = "", status: int | None = None) -> None:
        super().__init__(message, remedy)
        self.status = status


async def health(http: Http) -> int | None:
    """The status of /health; None when nobody answers, as while a model loads."""
    try:
        return (await http.request("GET", "/health", limit=HEALTH_TIMEOUT)).status
    except NoReply:
        return None


async def model_ids(http: Http, key: Secret | None = None) -> tuple[str, ...]:
    """The ids that /v1/models shows. Raises NoAnswer."""
    data = await _json(http, "GET", "/v1/models", None, MODELS_TIMEOUT, key)
    items = data.get("data") if isinstance(data, dict) else None
    if not isinstance(items, list):
        raise NoAnswer("/v1/models does not answer like an OpenAI server", "look what listens on that port")
    return tuple(str(item.get("id")) for item in items if isinstance(item, dict) and item.get("id"))


async def generate(http: Http, model: str, prompt: str, max_tokens: int, key: Secret | None = None) -> Answer:
    """One answer at temperature 0, as chat; as plain completion for a model without a chat template. Raises NoAnswer."""
    shared = {"model": model, "max_tokens": max_tokens, "temperature": 0}
    try:
        body = {**shared, "messages": [{"role": "user", "content": prompt}]}
        return _answer(await _json(http, "POST", "/v1/chat/completions", body, GENERATION_TIMEOUT, key))
    except NoAnswer as error:
        if error.status not in (400, 404, 405, 501):
            raise
    body = {**shared, "prompt": prompt}
    return _answer(await _json(http, "POST", "/v1/completions", body, GENERATION_TIMEOUT, key))


def _answer(data: Any) -> Answer:
    try:
        choice = data["choices"][0]
        message = choice.get("message")
        if isinstance(message, dict):  # the reasoning field was renamed between 0.16 and 0.33
            parts = [message.get("reasoning_content") or message.get("reasoning"), message.get("content")]
        else:
            parts = [choice.get("text")]
        text = "\n".join(part for part in parts if isinstance(part, str) and part)
        usage = data.get("usage")
        tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
        return Answer(text, tokens if isinstance(tokens, int) else None, str(choice.get("finish_reason") or ""))
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise NoAnswer("the server's answer holds no completion", "look at the service's log") from error


async def _json(http: Http, method: str, path: str, body: Any, timeout: float, key: Secret | None) -> Any:
    headers = {"Authorization": f"Bearer {key.reveal()}"} if key else None
    data = None if body is None else json.dumps(body).encode()
    try:
        reply = await http.request(method, path, limit=timeout, json=data, headers=headers)
    except NoReply as error:
        raise NoAnswer(f"{path}: {clean(str(error))}", "look at the service's log") from error
    raw, status = reply.text, reply.status
    if status == 401:
        raise NoAnswer(f"{path} answered 401", _KEY, status)
    if status != 200:
        raise NoAnswer(f"{path} answered {status}: {shown(_reason(raw))}", "look at the service's log", status)
    try:
        return json.loads(raw)
    except ValueError as error:
        raise NoAnswer(
            f"{path} answered something else than JSON: {shown(raw)}", "look what listens there", status
        ) from error


def _reason(raw: str) -> str:
    """The message in an OpenAI error body, else the body."""
    try:
        data = json.loads(raw)
        error = data.get("error", data)
        return str(error.get("message") or error.get("detail") or raw) if isinstance(error, dict) else str(error)
    except (ValueError, AttributeError):
        return raw
