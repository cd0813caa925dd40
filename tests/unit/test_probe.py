"""What is made of a server's answers: a real HTTP server, a real client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from console.deploy import probe
from console.node.http import Http, NoReply, parse_reply
from console.node.local import LocalNode
from console.text import Secret

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(**routes: Handler) -> AsyncIterator[Http]:
    """A server with handlers by the last part of their path."""
    app = web.Application()
    paths = {
        "health": "/health", "models": "/v1/models", "chat": "/v1/chat/completions", "plain": "/v1/completions",
    }  # fmt: skip
    for name, handler in routes.items():
        app.router.add_route("*", paths[name], handler)
    async with TestServer(app) as server:
        yield LocalNode(read_only=True).http(server.port or 0)


def answering(body: object, status: int = 200) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        return web.json_response(body, status=status)

    return handler


async def test_health_is_a_status_or_nobody() -> None:
    async with serving(health=answering({}, 503)) as http:
        assert await probe.health(http) == 503
    assert await probe.health(LocalNode(read_only=True).http(9)) is None


async def test_models() -> None:
    async with serving(models=answering({"data": [{"id": "kimi"}, {"id": None}, 3]})) as http:
        assert await probe.model_ids(http) == ("kimi",)
    async with serving(models=answering({"detail": "x"})) as http:
        with pytest.raises(probe.NoAnswer):
            await probe.model_ids(http)


async def test_reasoning_counts_as_text_under_both_names() -> None:
    for name in ("reasoning_content", "reasoning"):
        message = {"role": "assistant", "content": None, name: "The capital is Paris"}
        body = {"choices": [{"message": message, "finish_reason": "length"}], "usage": {"completion_tokens": 5}}
        async with serving(chat=answering(body)) as http:
            answer = await probe.generate(http, "kimi", "?", 8)
            assert (answer.text, answer.tokens, answer.finish) == ("The capital is Paris", 5, "length")


async def test_without_a_chat_template_it_is_a_plain_completion() -> None:
    refusal = {"error": {"message": "As of transformers v4.44, default chat template is no longer allowed"}}
    plain = {"choices": [{"text": " Paris"}]}
    async with serving(chat=answering(refusal, 400), plain=answering(plain)) as http:
        assert (await probe.generate(http, "kimi", "?", 8)).text == " Paris"


async def test_a_server_error_is_told_with_its_reason_and_is_not_tried_twice() -> None:
    plain_asked = []

    async def plain(request: web.Request) -> web.StreamResponse:
        plain_asked.append(request)
        return web.json_response({})

    dead = {"object": "error", "message": "EngineCore encountered an issue \x1b[31m", "code": 500}
    async with serving(chat=answering(dead, 500), plain=plain) as http:
        with pytest.raises(probe.NoAnswer) as caught:
            await probe.generate(http, "kimi", "?", 8)
    assert caught.value.status == 500
    assert "EngineCore encountered an issue" in caught.value.message
    assert "\x1b" not in caught.value.message
    assert not plain_asked


async def test_a_key_is_asked_for_and_sent() -> None:
    async def models(request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") != "Bearer s3cret":
            return web.json_response({"error": "Unauthorized"}, status=401)
        return web.json_response({"data": [{"id": "kimi"}]})

    async with serving(models=models) as http:
        assert await probe.model_ids(http, Secret("s3cret")) == ("kimi",)
        with pytest.raises(probe.NoAnswer) as caught:
            await probe.model_ids(http)
    assert caught.value.status == 401
    assert "environment_file" in caught.value.remedy


@pytest.mark.parametrize("body", [{}, {"choices": []}, {"choices": "x"}, [], None])
async def test_no_completion_is_no_answer(body: object) -> None:
    async with serving(chat=answering(body)) as http:
        with pytest.raises(probe.NoAnswer) as caught:
            await probe.generate(http, "kimi", "?", 8)
    assert caught.value.remedy


async def test_an_empty_choice_is_an_empty_answer() -> None:
    async with serving(chat=answering({"choices": [{}]})) as http:
        assert (await probe.generate(http, "kimi", "?", 8)).text == ""


async def test_a_page_instead_of_json() -> None:
    async def page(request: web.Request) -> web.StreamResponse:
        return web.Response(text="<html>nginx</html>")

    async with serving(models=page) as http:
        with pytest.raises(probe.NoAnswer, match="something else than JSON"):
            await probe.model_ids(http)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "closed without an answer"),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "no HTTP answer"),
        (b"HTTP/1.1 200 OK\r\n", "in its header"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}", "broke off after 2 bytes"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nx0 \r\n3\r\nx1", "broke off after 3 bytes"),
    ],
)
def test_half_an_answer_is_none(raw: bytes, said: str) -> None:
    with pytest.raises(NoReply, match=said):
        parse_reply(raw)


def test_an_answer_without_a_length_ends_with_its_connection() -> None:
    chunks = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nx0 \r\nA;x=1\r\n0123456789\r\n0\r\n\r\n"
    assert parse_reply(chunks).text == "x0 0123456789"
    reply = parse_reply(b"HTTP/1.0 503 Service Unavailable\r\nServer: x\r\n\r\nbusy \xff")
    assert (reply.status, reply.text) == (503, "busy \ufffd")
