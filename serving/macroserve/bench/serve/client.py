"""The load client: sends a plan open loop and times every token.

Open loop: requests leave as planned, however many answers are outstanding, as with independent
users. A client that waits for answers slows down with the endpoint and so hides its queues. Only
the turns of a conversation wait for each other.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Self

import aiohttp
import msgspec

from macroserve.bench.serve.payload import PayloadMaker, Text
from macroserve.bench.serve.record import Failure, RequestRecord
from macroserve.bench.serve.stream import (
    MalformedStreamError,
    StreamError,
    StreamMeter,
    error_message,
)
from macroserve.workload.arrivals import Arrival

KEEPALIVE_S = 3.0
"""Seconds for which an idle connection is kept. uvicorn closes it after 5 s, and a request on a
closing connection would look like a failure of the endpoint."""

CLASS_HEADER = "X-SLO-Class"
"""Header that names the SLO class of a request."""

PREFLIGHT_TIMEOUT_S = 15.0
MAX_DETAIL = 300
"""Maximum characters kept of an error's text."""

NO_TOKEN_IDS = (
    "the response has no token_ids, and so the next prompt cannot hold it: take --endpoint chat"
)


class EndpointError(Exception):
    """An endpoint that cannot be used at all; the message is a sentence for the user."""


@dataclass(frozen=True, slots=True)
class Target:
    """An OpenAI endpoint."""

    url: str
    """URL without ``/v1``."""
    timeout_s: float
    """Time limit of a request, seconds."""
    api_key: str | None = field(default=None, repr=False)


class Conversation:
    """A conversation in progress, whose prompts contain the actual responses before them. A single
    request is a conversation of one turn.

    number: number of its first request in the plan.
    max_model_len: longest context of the model in tokens; None if unknown.
    """

    def __init__(
        self,
        payloads: PayloadMaker,
        number: int,
        arrival: Arrival,
        max_model_len: int | None = None,
    ) -> None:
        self.number = number
        self.arrival = arrival
        """The next turn to send; at first, the request of the plan."""
        self.goes_on = True
        """Whether there is a next turn."""
        self._payloads = payloads
        self._max_model_len = max_model_len
        self._turn = 0
        self._said: list[Text] = [payloads.prompt(number, arrival)]
        """Messages and responses in turn; the last one is the next turn's message."""

    def body(self) -> bytes:
        """Return the JSON body of the next turn."""
        return self._payloads.encode(
            self._said, self.arrival.num_output_tokens, goes_on=bool(self.arrival.turns)
        )

    def take(self, record: RequestRecord, meter: StreamMeter) -> RequestRecord:
        """Continue with the response to the turn that was sent; return its record, completed by its
        place in the conversation."""
        self.goes_on = False
        turns, record = self.arrival.turns, replace(record, turn=self._turn)
        if not turns or record.failure is Failure.INTERRUPTED:
            return record
        response = meter.text if isinstance(self._said[0], str) else meter.token_ids
        if record.failure is None and isinstance(response, list) and not response:
            record = replace(record, failure=Failure.MALFORMED, detail=NO_TOKEN_IDS)
        following = self.arrival.next_turn(
            record.ended_s, record.num_prompt_tokens + record.num_tokens
        )
        num_tokens = following.num_prompt_tokens + following.num_output_tokens
        is_too_long = self._max_model_len is not None and num_tokens > self._max_model_len
        if record.failure is not None or is_too_long:
            return replace(record, num_unsent=len(turns))
        self._turn += 1
        message = self._payloads.message(self.number, self._turn, turns[0])
        self._said += [response, message]
        self.arrival, self.goes_on = following, True
        return record


class LoadClient:
    """A client that sends runs over one connection pool without limits."""

    def __init__(self, target: Target) -> None:
        self._target = target
        key = target.api_key
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S),
            timeout=aiohttp.ClientTimeout(total=target.timeout_s),
            headers={"Content-Type": "application/json"}
            | ({"Authorization": f"Bearer {key}"} if key else {}),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def find_model(self, wanted: str | None) -> str:
        """Return ``wanted``, or the first model that the endpoint lists.

        Raises EndpointError if the endpoint cannot be reached, refuses the key or lists no model.
        """
        status, models = await self._models()
        if wanted:
            return wanted
        if not models:
            raise EndpointError(
                f"{self._target.url}/v1/models lists no model (HTTP {status}): name one with "
                "--model"
            )
        return models[0].id

    async def find_max_model_len(self, model: str) -> int | None:
        """Return the longest context of a model in tokens; None if the endpoint, unlike vLLM, does
        not report it. Raises EndpointError like ``find_model``."""
        _, models = await self._models()
        return next((each.max_model_len for each in models if each.id == model), None)

    async def _models(self) -> tuple[int, Sequence["_Model"]]:
        """Return the HTTP status of the endpoint's list of models, and the list if it is valid."""
        url = f"{self._target.url}/v1/models"
        timeout = aiohttp.ClientTimeout(total=PREFLIGHT_TIMEOUT_S)
        try:
            async with self._session.get(url, timeout=timeout) as response:
                status, body = response.status, await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise EndpointError(
                f"cannot reach {self._target.url}: {error or type(error).__name__}"
            ) from error
        if status in (401, 403):
            raise EndpointError(f"{self._target.url} refuses the API key (HTTP {status})")
        try:
            return status, msgspec.json.decode(body, type=_ModelList).data
        except msgspec.MsgspecError:
            return status, ()

    async def run(
        self,
        plan: Sequence[Arrival],
        payloads: PayloadMaker,
        stop: asyncio.Event,
        on_sent: Callable[[], None],
        on_done: Callable[[RequestRecord], None],
        max_model_len: int | None = None,
    ) -> list[RequestRecord]:
        """Send ``plan`` and return the records of the requests sent, in order of arrival, with the
        turns of a conversation together.

        stop: once set, no more requests are sent, and those in flight are interrupted.
        max_model_len: length at which conversations end.
        """
        records: list[RequestRecord] = []
        loop = asyncio.get_running_loop()
        start, path = loop.time(), payloads.endpoint.path

        async def send(conversation: Conversation, body: bytes) -> None:
            on_sent()
            planned = conversation.arrival
            meter = StreamMeter(keeps_answer=bool(planned.turns))
            record = conversation.take(
                await self.exchange(path, conversation.number, planned, body, start, meter), meter
            )
            records.append(record)
            on_done(record)

        async def send_turns(conversation: Conversation, body: bytes) -> None:
            await send(conversation, body)
            while conversation.goes_on:
                body = conversation.body()
                await asyncio.sleep(start + conversation.arrival.at_s - loop.time())
                await send(conversation, body)

        async def send_all() -> None:
            async with asyncio.TaskGroup() as in_flight:
                for index, planned in enumerate(plan):
                    # Before the wait, so that the request leaves on time.
                    conversation = Conversation(payloads, index, planned, max_model_len)
                    body = conversation.body()
                    await asyncio.sleep(start + planned.at_s - loop.time())
                    in_flight.create_task(send_turns(conversation, body))

        sending = asyncio.create_task(send_all())
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait((sending, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        sending.cancel()
        with suppress(asyncio.CancelledError):
            await sending
        return sorted(records, key=lambda record: (record.index, record.turn))

    async def exchange(
        self,
        path: str,
        index: int,
        planned: Arrival,
        body: bytes,
        start: float,
        meter: StreamMeter | None = None,
    ) -> RequestRecord:
        """Send one request and return its record.

        start: start of the run on the event loop's clock.
        meter: meter to feed, if the caller needs more than the record.
        """
        clock = asyncio.get_running_loop().time
        meter = meter or StreamMeter()
        failure: Failure | None = None
        detail, status, x_request_id = "", None, None
        headers = {CLASS_HEADER: planned.slo_class.name} if planned.slo_class else None
        sent = clock()
        try:
            async with self._session.post(
                self._target.url + path, data=body, headers=headers, allow_redirects=False
            ) as response:
                status = response.status
                x_request_id = response.headers.get("x-request-id")
                if status == 200:
                    while data := await response.content.readany():
                        meter.feed(data, clock())
                else:
                    failure, detail = Failure.HTTP, _error_detail(await response.read())
        except (
            aiohttp.ClientError,
            TimeoutError,
            StreamError,
            MalformedStreamError,
            asyncio.CancelledError,
        ) as error:
            if not meter.complete:
                failure, detail = _classify(error), str(error) or type(error).__name__
        meter.close()
        if failure is None and (not meter.complete or meter.first_token_s is None):
            failure, detail = Failure.TRUNCATED, f"it ended after {meter.num_tokens} tokens"
        return RequestRecord(
            index=index,
            scheduled_s=planned.at_s,
            sent_s=sent - start,
            ended_s=clock() - start,
            num_prompt_tokens=meter.num_prompt_tokens or planned.num_prompt_tokens,
            num_planned_tokens=planned.num_output_tokens,
            num_tokens=meter.num_tokens,
            num_cached_tokens=meter.num_cached_tokens,
            failure=failure,
            detail=self._without_key(detail)[:MAX_DETAIL],
            http_status=status,
            x_request_id=x_request_id,
            ttft_s=_since(sent, meter.first_token_s),
            e2e_s=_since(sent, meter.last_token_s),
            gaps_s=meter.gaps_s,
            slo_class=planned.slo_class,
        )

    def _without_key(self, text: str) -> str:
        """Remove the key from an error, which some endpoints quote."""
        return text.replace(self._target.api_key, "***") if self._target.api_key else text


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _ModelList(msgspec.Struct):
    data: list[_Model]


class _ErrorBody(msgspec.Struct):
    error: object


def _error_detail(body: bytes) -> str:
    try:
        return error_message(msgspec.json.decode(body, type=_ErrorBody).error)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return body.decode(errors="replace")


def _classify(error: BaseException) -> Failure:
    match error:
        case asyncio.CancelledError():
            return Failure.INTERRUPTED
        case TimeoutError():
            return Failure.TIMEOUT
        case aiohttp.ClientConnectorError():
            return Failure.CONNECT
        case StreamError():
            return Failure.STREAM
        case MalformedStreamError() | aiohttp.ClientResponseError():
            return Failure.MALFORMED
        case _:
            return Failure.DISCONNECT


def _since(start: float, moment: float | None) -> float | None:
    return None if moment is None else moment - start
