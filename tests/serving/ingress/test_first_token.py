"""An ingress requests its first token when it has an instance."""

import asyncio
from http import HTTPStatus
from typing import Any, cast

from support.fake_instances import FakeDirectory

from macroserve.api.messages import CellMember, RequestInfo
from macroserve.core.request import Slo
from macroserve.core.status import Pool
from macroserve.engine.tokens import Choice, Put, RefusedError, TokenRequest
from macroserve.serving.ingress.first_token import first_token

MEMBER = CellMember("a", "http://127.0.0.1:1", Pool.LP, 1)


class Directory(FakeDirectory):
    """A directory with an instance after `looks` queries."""

    looks = 0

    async def changed(self, timeout_s: float) -> None:
        await super().changed(timeout_s)
        self.looks -= 1
        if not self.looks:
            self.members["a"] = MEMBER


class Streamer:
    """A streamer that fails `failures` times, then returns one token."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.asked: list[TokenRequest] = []

    def info(self, request_id: str) -> RequestInfo:
        return RequestInfo(route_id=request_id, age_s=0.0, slo=Slo(1.0, 0.1))

    async def stream(self, request: TokenRequest, put: Put) -> None:
        self.asked.append(request)
        if len(self.asked) <= self.failures:
            raise RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, "no instance")
        put(Choice([5], None))
        put(Choice([], "length"))


def wait_for(directory: FakeDirectory, streamer: Streamer) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(10):
            await first_token(cast(Any, directory), streamer)

    asyncio.run(bounded())


def test_first_token_without_an_instance_asks_no_cell() -> None:
    directory, streamer = Directory(), Streamer()
    directory.looks = 3
    wait_for(directory, streamer)
    assert directory.looks == 0
    assert [(asked.max_new_tokens, asked.info.probe) for asked in streamer.asked] == [(1, True)]


def test_first_token_that_is_refused_is_asked_for_again() -> None:
    directory, streamer = FakeDirectory({"a": MEMBER}), Streamer(failures=2)
    wait_for(directory, streamer)
    assert len(streamer.asked) == 3
