"""What is made of a server's answers: a real HTTP server, a real client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from console.deploy import probe
from console.text import Secret

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(**routes: Handler) -> AsyncIterator[aiohttp.ClientSession]:
    """A server with handlers by the last part of their path."""
    app = web.Application()
    paths = {
        "health": "/health", "models": "/v1/models", "chat": "/v1/chat/completions", "plain": "/v1/completions",
    }  # fmt: skip
    for name, handler in routes.items():
        app.router.add_route("*", paths[name], handler)
    async with TestServer(app) as server, aiohttp.ClientSession(server.make_url("/")) as session:
        yield session


def answering(body: object, status: int = 200) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        return web.json_response(body, status=status)

    return handler


async def test_health_is_a_status_or_nobody() -> None:
    async with serving(health=answering({}, 503)) as session:
        assert await probe.health(session) == 503
    async with aiohttp.ClientSession("http://127.0.0.1:9") as session:
        assert await probe.health(session) is None


async def test_models() -> None:
    async with serving(models=answering({"data": [{"id": "kimi"}, {"id": None}, 3]})) as session:
        assert await probe.model_ids(session) == ("kimi",)
    async with serving(models=answering({"detail": "x"})) as session:
        with pytest.raises(probe.NoAnswer):
            await probe.model_ids(session)


async def test_reasoning_counts_as_text_under_both_names() -> None:
    for name in ("reasoning_content", "reasoning"):
        message = {"role": "assistant", "content": None, name: "The capital is Paris"}
        body = {"choices": [{"message": message, "finish_reason": "length"}], "usage": {"completion_tokens": 5}}
        async with serving(chat=answering(body)) as session:
            answer = await probe.generate(session, "kimi", "?", 8)
            assert (answer.text, answer.tokens, answer.finish) == ("The capital is Paris", 5, "length")


async def test_without_a_chat_template_it_is_a_plain_completion() -> None:
    refusal = {"error": {"message": "As of transformers v4.44, default chat template is no longer allowed"}}
    plain = {"choices": [{"text": " Paris"}]}
    async with serving(chat=answering(refusal, 400), plain=answering(plain)) as session:
        assert (await probe.generate(session, "kimi", "?", 8)).text == " Paris"


async def test_a_server_error_is_told_with_its_reason_and_is_not_tried_twice() -> None:
    plain_asked = []

    async def plain(request: web.Request) -> web.StreamResponse:
        plain_asked.append(request)
        return web.json_response({})

    dead = {"object": "error", "message": "EngineCore encountered an issue \x1b[31m", "code": 500}
    async with serving(chat=answering(dead, 500), plain=plain) as session:
        with pytest.raises(probe.NoAnswer) as caught:
            await probe.generate(session, "kimi", "?", 8)
    assert caught.value.status == 500
    assert "EngineCore encountered an issue" in caught.value.message
    assert "\x1b" not in caught.value.message
    assert not plain_asked


async def test_a_key_is_asked_for_and_sent() -> None:
    async def models(request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") != "Bearer s3cret":
            return web.json_response({"error": "Unauthorized"}, status=401)
        return web.json_response({"data": [{"id": "kimi"}]})

    async with serving(models=models) as session:
        assert await probe.model_ids(session, Secret("s3cret")) == ("kimi",)
        with pytest.raises(probe.NoAnswer) as caught:
            await probe.model_ids(session)
    assert caught.value.status == 401
    assert "environment_file" in caught.value.remedy


@pytest.mark.parametrize("body", [{}, {"choices": []}, {"choices": "x"}, [], None])
async def test_no_completion_is_no_answer(body: object) -> None:
    async with serving(chat=answering(body)) as session:
        with pytest.raises(probe.NoAnswer) as caught:
            await probe.generate(session, "kimi", "?", 8)
    assert caught.value.remedy


async def test_an_empty_choice_is_an_empty_answer() -> None:
    async with serving(chat=answering({"choices": [{}]})) as session:
        assert (await probe.generate(session, "kimi", "?", 8)).text == ""


async def test_a_page_instead_of_json() -> None:
    async def page(request: web.Request) -> web.StreamResponse:
        return web.Response(text="<html>nginx</html>")

    async with serving(models=page) as session:
        with pytest.raises(probe.NoAnswer, match="something else than JSON"):
            await probe.model_ids(session)
