"""Send small requests that need much memory, and large ones that must not be read."""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from macroserve_lab.bench.hostile.served import MODEL, Served

MIB = 1 << 20
REQUEST_TIMEOUT_S = 90.0
SAMPLE_S = 0.05
HOLD_S = 5.0
"""Time for which a case keeps its connections open after the last byte."""
CHAT = "/v1/chat/completions"


async def measure(deployment: Served) -> dict[str, float]:
    """Return the growth of the largest ingress in MB, worker processes included.

    memory_mb: largest growth over all cases.
    memory_mb.CASE: growth in one case.
    """
    # The process for schemas starts in the background.
    await _send(deployment, "/v1/completions", _completion(structured_outputs={"regex": "a"}))
    start_mb = deployment.ingress_mb()
    figures: dict[str, float] = {}
    for name, case in CASES.items():
        before_mb = deployment.ingress_mb()
        async with _peak_mb(deployment) as peak:
            await case(deployment)
        figures[f"memory_mb.{name}"] = max(0.0, peak[0] - before_mb)
        figures["memory_mb"] = max(figures.get("memory_mb", 0.0), peak[0] - start_mb)
    return figures


@asynccontextmanager
async def _peak_mb(deployment: Served):
    peak = [0.0]

    async def sample() -> None:
        while True:
            peak[0] = max(peak[0], await asyncio.to_thread(deployment.ingress_mb))
            await asyncio.sleep(SAMPLE_S)

    sampler = asyncio.create_task(sample())
    try:
        yield peak
        peak[0] = max(peak[0], await asyncio.to_thread(deployment.ingress_mb))
    finally:
        sampler.cancel()


# -- bodies


def _completion(**changes: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": "Hello", "max_tokens": 2, **changes}


def _chat(**changes: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Hello"}]
    return {"model": MODEL, "messages": messages, "max_tokens": 2, **changes}


def _padded(**kwargs: Any) -> dict[str, Any]:
    """Return a chat padded to a length that the machine survives even without a limit."""
    padding = {"padding": "max_length", "max_length": 10_000_000, **kwargs}
    return _chat(chat_template_kwargs=padding)


async def _send(deployment: Served, path: str, body: object) -> None:
    """Send a request and ignore its answer; only memory is measured."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)
    headers = {"Content-Type": "application/json"}
    with contextlib.suppress(aiohttp.ClientError, TimeoutError):
        async with (
            aiohttp.ClientSession(timeout=timeout) as http,
            http.post(deployment.endpoint + path, data=data, headers=headers) as response,
        ):
            await response.read()


def _one(path: str, body: Callable[[], object]) -> Callable[[Served], Awaitable[None]]:
    async def case(deployment: Served) -> None:
        await _send(deployment, path, body())

    return case


# -- connections


async def _long_header(deployment: Served) -> None:
    """Send a header without an end on one socket."""
    async with _connections(deployment, 1) as writers:
        writers[0].write(b"GET /health HTTP/1.1\r\nHost: a\r\nX-Long: ")
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(30):
                for _ in range(140):
                    writers[0].write(b"a" * MIB)
                    await writers[0].drain()


async def _half_requests(deployment: Served) -> None:
    async with _connections(deployment, 400) as writers:
        for writer in writers:
            writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nX-Part: " + b"a" * 10_000)
        await asyncio.sleep(HOLD_S)


async def _slow_bodies(deployment: Served) -> None:
    """Send fifty bodies of nearly 8 MiB that lack their last byte."""
    size = 8 * MIB - 1024
    head = f"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\n\r\n".encode()
    async with _connections(deployment, 50) as writers:

        async def send(writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(20):
                    writer.write(head + b"a" * (size - 1))
                    await writer.drain()

        await asyncio.gather(*map(send, writers))
        await asyncio.sleep(HOLD_S)


@asynccontextmanager
async def _connections(deployment: Served, count: int):
    address = urlsplit(deployment.endpoint)
    writers: list[asyncio.StreamWriter] = []
    try:
        for _ in range(count):
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection(address.hostname, address.port)
                writers.append(writer)
        yield writers
    finally:
        for writer in writers:
            writer.transport.abort()


DEPTH = 100_000
"""Levels of the nested prompt."""

CASES: dict[str, Callable[[Served], Awaitable[None]]] = {
    "template_padding": _one(CHAT, _padded),
    "template_tokenize": _one(CHAT, lambda: _padded(tokenize=True)),
    "tokenize_padding": _one(
        "/tokenize", lambda: {**_padded(tokenize=True), "add_generation_prompt": True}
    ),
    "tokenizer_kwargs": _one(
        CHAT,
        lambda: _chat(
            chat_template_kwargs={
                "tokenize": True,
                "tokenizer_kwargs": {"padding": "max_length", "max_length": 10_000_000},
            }
        ),
    ),
    "tokenize_text": _one("/tokenize", lambda: {"model": MODEL, "prompt": "hello " * 1_100_000}),
    "detokenize": _one("/detokenize", lambda: {"model": MODEL, "tokens": [5] * 3_000_000}),
    "messages": _one(
        CHAT, lambda: _chat(messages=[{"role": "user", "content": "Hello"}] * 100_000)
    ),
    "batch": _one(
        CHAT + "/batch",
        lambda: _chat(messages=[[{"role": "user", "content": "Hello"}]] * 20_000),
    ),
    "prompts": _one("/v1/completions", lambda: _completion(prompt=["Hello"] * 500_000)),
    "choices": _one("/v1/completions", lambda: _completion(n=2_000)),
    "stop_strings": _one("/v1/completions", lambda: _completion(stop=["a" * 100] * 50_000)),
    "logit_bias": _one(
        "/v1/completions",
        lambda: _completion(logit_bias={str(i): 1 for i in range(300_000)}),
    ),
    "objects": _one("/v1/completions", lambda: _completion(extra=[{}] * 2_000_000)),
    "nesting": _one(
        "/v1/completions",
        lambda: f'{{"model": "{MODEL}", "prompt": {"[" * DEPTH + "]" * DEPTH}}}'.encode(),
    ),
    "grammar": _one(
        "/v1/completions",
        lambda: _completion(structured_outputs={"regex": "((a{1,1000}){1,1000}){1,1000}"}),
    ),
    "tools": _one(
        CHAT,
        lambda: _chat(
            tools=[{"type": "function", "function": {"name": f"f{i}"}} for i in range(50_000)]
        ),
    ),
    "header": _long_header,
    "half_requests": _half_requests,
    "slow_bodies": _slow_bodies,
}
