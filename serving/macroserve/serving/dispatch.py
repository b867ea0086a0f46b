"""The ingress's side of a request: it is held here until its last token.

An attempt streams straight from an instance. When the instance dies, offloads or drains, the same
tokens plus those already streamed go to another one, so the client sees one unbroken stream.
"""

import asyncio
import time
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from http import HTTPStatus
from typing import Any

import aiohttp
import msgspec

from macroserve.core.batch import HandBackReason
from macroserve.core.instance.length import LengthPredictor
from macroserve.core.request import Request, Slo
from macroserve.engine.tag import HAND_BACK_PREFIX, RequestTag
from macroserve.engine.tokens import (
    GENERATE_PATH,
    Choice,
    EventParser,
    RefusedError,
    TokenRequest,
)
from macroserve.serving import wire
from macroserve.serving.auth import bearer
from macroserve.serving.directory import CellDirectory, Placement
from macroserve.serving.metrics import IngressMetrics

GIVE_UP_S = 60.0
"""A request that has made no progress for so long, on any instance, ends with 503."""
RETRY_S = 0.5
"""Before a request goes again to instances that all have failed it."""
PATIENCE_S = 5.0
"""How long a stream is trusted when no cell knows its instance (it may be on its way between)."""
CONNECT_TIMEOUT_S = 2.0


class BrokenStreamError(Exception):
    """The attempt ended before the request did."""


class HandedBackError(Exception):
    """The instance gave the request up."""

    def __init__(self, reason: HandBackReason) -> None:
        super().__init__(reason)
        self.reason = reason


class Dispatcher:
    """Implements ``engine.tokens.TokenStreamer`` over the instances that a directory finds."""

    def __init__(
        self,
        directory: CellDirectory,
        slo: Slo,
        secret: str,
        metrics: IngressMetrics,
        drop_late: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory = directory
        self._slo = slo
        self._secret = secret
        self._metrics = metrics
        self._drop_late = drop_late
        self._clock = clock
        self._lengths = LengthPredictor()
        self._http: aiohttp.ClientSession | None = None
        self._open: defaultdict[str, set[aiohttp.ClientResponse]] = defaultdict(set)

    async def start(self) -> None:
        self._http = aiohttp.ClientSession(
            headers=bearer(self._secret),
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60),
            read_bufsize=1 << 18,
        )
        self._watcher = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        if self._http is not None:
            self._watcher.cancel()
            await self._http.close()

    def admit(self) -> None:
        """Raises RefusedError (429) when late requests are dropped and all queues are late."""
        if self._drop_late and self._directory.late:
            self._metrics.refused("late")
            raise RefusedError(
                HTTPStatus.TOO_MANY_REQUESTS, "every queue is past its latency target; retry later"
            )

    async def stream(self, request: TokenRequest) -> AsyncIterator[Choice]:
        arrival = self._clock()
        accepted = Request(
            request.request_id, arrival, len(request.token_ids), request.max_new_tokens, self._slo
        )
        emitted: list[int] = []
        failed: set[str] = set()
        offloaded = False
        with self._metrics.request(arrival, request, self._slo) as record:
            while True:
                query = self._query(accepted, len(emitted), failed, offloaded)
                placement = await self._place(query, give_up_s=record.last_s + GIVE_UP_S)
                try:
                    async for choice in self._attempt(request, placement, query, emitted):
                        emitted += choice.token_ids or ()
                        record.tokens(len(choice.token_ids or ()), self._clock())
                        yield choice
                        if choice.finish_reason:
                            self._lengths.observe(accepted, len(emitted))
                            return
                    raise BrokenStreamError("the stream ended early")
                except HandedBackError as handed_back:
                    self._metrics.rerouted(handed_back.reason)
                    if handed_back.reason == HandBackReason.DROP:
                        raise RefusedError(
                            HTTPStatus.TOO_MANY_REQUESTS, "the latency target has passed"
                        ) from None
                    offloaded = offloaded or handed_back.reason == HandBackReason.OFFLOAD
                    failed.add(placement.instance)
                except (
                    aiohttp.ClientError,
                    OSError,
                    msgspec.MsgspecError,
                    BrokenStreamError,
                ) as error:
                    self._metrics.rerouted("broken")
                    failed.add(placement.instance)
                    if emitted and not request.restartable:
                        raise RefusedError(
                            HTTPStatus.SERVICE_UNAVAILABLE,
                            "the instance failed while it generated under a grammar; retry",
                        ) from error
                if len(emitted) >= request.max_new_tokens:
                    yield Choice([], "length")
                    return

    # -- one attempt

    def _query(
        self,
        request: Request,
        num_emitted: int,
        failed: set[str],
        offloaded: bool,
    ) -> wire.RouteQuery:
        return wire.RouteQuery(
            route_id=uuid.uuid4().hex,
            age_s=self._clock() - request.arrival_s,
            num_prompt_tokens=request.num_prompt_tokens + num_emitted,
            max_new_tokens=max(1, request.max_new_tokens - num_emitted),
            predicted_new_tokens=self._lengths.predict(request, num_emitted) - num_emitted,
            slo=request.slo,
            num_streamed_tokens=num_emitted,
            exclude=tuple(failed),
            offloaded=offloaded,
        )

    async def _place(self, query: wire.RouteQuery, give_up_s: float) -> Placement:
        """An instance, waiting for one if there is none, and a moment if all have failed it.

        Raises RefusedError (503) when the clock is past ``give_up_s``.
        """
        while self._clock() < give_up_s:
            placement = await self._directory.place(query)
            if placement is None:
                await self._directory.changed(RETRY_S)
                placement = await self._directory.place(msgspec.structs.replace(query, exclude=()))
            if placement is not None:
                self._metrics.placed(placement.reason)
                return placement
        raise RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, "no instance could take the request")

    async def _attempt(
        self,
        request: TokenRequest,
        placement: Placement,
        query: wire.RouteQuery,
        emitted: list[int],
    ) -> AsyncIterator[Choice]:
        assert self._http is not None, "the dispatcher is not started"
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S)
        body = msgspec.json.encode(_body(request, query, emitted))
        arrived = False
        try:
            async with self._http.post(
                placement.address + GENERATE_PATH,
                data=body,
                headers={"Content-Type": "application/json"},
                timeout=timeout,
            ) as response:
                if response.status != HTTPStatus.OK:
                    await _refuse(response)
                arrived = True
                async for choice in self._choices(response, placement):
                    yield choice
        finally:
            if not arrived:
                await self._directory.settle(placement, query.route_id)

    async def _choices(
        self, response: aiohttp.ClientResponse, placement: Placement
    ) -> AsyncIterator[Choice]:
        self._open[placement.instance].add(response)
        try:
            parser = EventParser()
            while data := await response.content.readany():
                for chunk in parser.feed(data):
                    if chunk.error is not None:
                        raise BrokenStreamError(chunk.error.message)
                    for choice in chunk.choices:
                        _check_handed_back(choice)
                        yield choice
        finally:
            self._open[placement.instance].discard(response)

    async def _watch(self) -> None:
        """Break off streams from instances that no cell has known for a while: a hung process
        keeps its connections open and says nothing."""
        missing_since: dict[str, float] = {}
        while True:
            await asyncio.sleep(1)
            now, members = self._clock(), self._directory.members
            missing_since = {
                name: missing_since.get(name, now) for name in self._open if name not in members
            }
            for name, since in missing_since.items():
                if now - since > PATIENCE_S:
                    for response in list(self._open[name]):
                        response.close()


def _body(request: TokenRequest, query: wire.RouteQuery, emitted: list[int]) -> dict[str, Any]:
    """vLLM's ``GenerateRequest``, with what was emitted already as part of the prompt."""
    tag = RequestTag(query.route_id, query.age_s, query.slo, query.num_streamed_tokens)
    sampling = {
        **request.sampling,
        "max_tokens": query.max_new_tokens,
        "extra_args": {**(request.sampling.get("extra_args") or {}), **tag.to_args()},
    }
    if "min_tokens" in sampling:
        sampling["min_tokens"] = max(0, sampling["min_tokens"] - len(emitted))
    return {
        **request.options,
        "request_id": query.route_id,
        "token_ids": [*request.token_ids, *emitted],
        "sampling_params": sampling,
        "stream": True,
    }


async def _refuse(response: aiohttp.ClientResponse) -> None:
    """A fault of the request ends it; a fault of the instance sends it elsewhere."""
    text = await response.text()
    if response.status < 500:
        try:
            message = msgspec.json.decode(text)["error"]["message"]
        except (msgspec.MsgspecError, KeyError, TypeError):
            message = text[:500]
        raise RefusedError(response.status, message)
    raise BrokenStreamError(f"HTTP {response.status}: {text[:200]}")


def _check_handed_back(choice: Choice) -> None:
    if choice.finish_reason == "abort":
        reason = str(choice.stop_reason or "")
        if reason.startswith(HAND_BACK_PREFIX):
            raise HandedBackError(HandBackReason(reason.removeprefix(HAND_BACK_PREFIX)))
        raise BrokenStreamError("the instance aborted the request")
