"""The ingress's side of a request, which it holds until the last token.

An attempt streams straight from an instance. If the instance dies, offloads or drains, the prompt
plus the tokens already streamed go to another one, so the client sees one unbroken stream. The
number of broken attempts (``core.routing.attempts``) and the time of the search are bounded.
"""

import asyncio
import random
import time
import uuid
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from math import inf

from msgspec.structs import replace

from macroserve.api import messages
from macroserve.api.logs import get_logger
from macroserve.core.batch import HandBackReason
from macroserve.core.routing.attempts import Attempts, AvoidList
from macroserve.core.routing.queue_wait import retry_after_s
from macroserve.core.scheduler.estimators import LengthPredictor
from macroserve.core.slo_class import SloClass
from macroserve.engine.tokens import Choice, Put, RefusedError, TokenRequest
from macroserve.serving.background import BackgroundTasks
from macroserve.serving.ingress.cell_directory import CellDirectory, RoutedInstance
from macroserve.serving.ingress.instance_client import (
    SILENCE_S,
    BrokenError,
    HandedBackError,
    InstanceClient,
    SilentError,
    UnreachableError,
)
from macroserve.serving.ingress.metrics import IngressMetrics
from macroserve.serving.ingress.prefix_keys import prefix_keys
from macroserve.serving.ingress.request_targets import current_class
from macroserve.serving.ingress.served_request import ServedRequest
from macroserve.serving.ingress.session import session_key
from macroserve.serving.security.key_source import LiveKeys

GIVE_UP_S = 60.0
"""Total time of searching for an instance since the last token, after which a request ends with
503. Time in an instance's queue does not count."""
RETRY_S = 0.5
"""Delay before a request is sent again to instances that have all failed it."""
PATIENCE_S = 5.0
"""Time for which a stream is kept while no cell has its instance, which may be migrating."""
EXPLAIN_S = 1.0
"""Delay before a request is given up, in which the breaks may prove another request's fault."""

log = get_logger(__name__)


class Dispatcher:
    """An ``engine.tokens.TokenStreamer`` over the instances of a directory.

    default: SLO class of requests without another.
    model: served name of the model.
    max_queue_wait_s: predicted queueing beyond which a request is refused.
    silence_s: silence of an instance after which an attempt counts as broken.
    """

    def __init__(
        self,
        directory: CellDirectory,
        default: SloClass,
        keys: LiveKeys,
        metrics: IngressMetrics,
        model: str,
        drop_late: bool = False,
        max_queue_wait_s: float = inf,
        silence_s: float = SILENCE_S,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._directory = directory
        self._default = default
        self._metrics = metrics
        self._model = model
        self._drop_late = drop_late
        self._max_queue_wait_s = max_queue_wait_s
        self._clock, self._sleep = clock, sleep
        self._lengths = LengthPredictor()
        self._silence_s = silence_s
        self._client = InstanceClient(keys, silence_s)
        self._avoid = AvoidList()
        self._tasks = BackgroundTasks()

    async def start(self) -> None:
        await self._client.start()
        self._tasks.start("watch of open streams", self._watch())

    def check(self) -> None:
        """Raise RuntimeError when open streams are no longer watched."""
        self._tasks.check()

    async def stop(self) -> None:
        await self._tasks.stop()
        await self._client.stop()

    def admit(self) -> None:
        """Raise RefusedError (429) when every queue is too long for a new request."""
        targets = self._targets
        wait_s = self._directory.queue_wait_s(targets.slo.ttft_s)
        if wait_s is not None and wait_s > self._max_queue_wait_s:
            self._note_refused("queue_wait")
            raise RefusedError(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"the queue takes about {wait_s:.0f} s, longer than spec.scheduling.maxQueueWait, "
                f"{self._max_queue_wait_s:.0f} s; retry later",
            )
        if self._drop_late and self._directory.is_late(targets.slo.ttft_s):
            self._note_refused("late")
            raise RefusedError(
                HTTPStatus.TOO_MANY_REQUESTS, "every queue is past its latency target; retry later"
            )

    def _note_refused(self, reason: str) -> None:
        self._metrics.refused(reason, self._targets.name)
        self._directory.note_refused(reason)

    def retry_after_s(self) -> int:
        """Return the seconds after which a client refused now should retry."""
        ttft_s = self._targets.slo.ttft_s
        bound_s = ttft_s if self._drop_late else self._max_queue_wait_s
        return retry_after_s(self._directory.queue_wait_s(ttft_s), bound_s, random.random())

    @property
    def _targets(self) -> SloClass:
        return current_class(self._default)

    def info(self, request_id: str) -> messages.RequestInfo:
        targets = self._targets
        return messages.RequestInfo(
            route_id=request_id, age_s=0.0, slo=targets.slo, slo_class=targets.name
        )

    async def stream(self, request: TokenRequest, put: Put) -> None:
        """Stream the tokens of a request. Raises RefusedError for the client's fault, without an
        instance (503), or after too many broken attempts (500)."""
        arrival = self._clock()
        sizes = (request.num_prompt_tokens, request.max_new_tokens)
        accepted = request.info.to_request(request.request_id, *sizes, arrival)
        emitted: list[int] = []
        attempts = Attempts()
        offloaded = False
        searched_s = 0.0
        failure: dict[str, str] | None = None
        with (
            self._metrics.request(arrival, request) as record,
            record.logged(request, request.adapter or self._model),
        ):

            def take(choice: Choice) -> None:
                nonlocal searched_s
                if choice.token_ids:
                    emitted.extend(choice.token_ids)
                    record.tokens(len(choice.token_ids), self._clock())
                    searched_s = 0.0
                put(choice)

            prefix, session = await prefix_keys(request), session_key(request.session)
            while True:
                info = replace(
                    self._aged(request.info, arrival),
                    route_id=uuid.uuid4().hex,
                    num_streamed_tokens=len(emitted),
                )
                attempted = request.attempt(info, emitted)
                num_new = self._lengths.predict(accepted, len(emitted)) - len(emitted)
                query = messages.RouteQuery(
                    info=info,
                    num_prompt_tokens=attempted.num_prompt_tokens,
                    max_new_tokens=attempted.max_new_tokens,
                    predicted_new_tokens=num_new,
                    exclude=tuple(attempts.failed),
                    offloaded=offloaded,
                    trial=attempts.is_suspect(self._directory.explained),
                    adapter=request.adapter,
                    prefix=prefix,
                    session=session,
                )
                began = self._clock()
                routed = await self._route(query, arrival, began + GIVE_UP_S - searched_s)
                searched_s += self._clock() - began
                if failure:
                    log.info(
                        "request rerouted",
                        id=request.request_id,
                        **failure,
                        to_instance=routed.instance,
                        attempt_id=info.route_id,
                        streamed_tokens=len(emitted),
                    )
                began = self._clock()
                try:
                    attempted = replace(attempted, info=self._aged(info, arrival))
                    await self._attempt(attempted, routed, query, attempts, take)
                    if not request.info.probe:
                        self._lengths.observe(accepted, len(emitted))
                    return
                except HandedBackError as handed_back:
                    failure = self._rerouted(record, routed, handed_back.reason)
                    if handed_back.reason == HandBackReason.DROP:
                        self._directory.note_refused("late")
                        raise RefusedError(
                            HTTPStatus.TOO_MANY_REQUESTS,
                            "the latency target has passed; retry later",
                        ) from None
                    offloaded = offloaded or handed_back.reason == HandBackReason.OFFLOAD
                    attempts = attempts.handed_back(routed.instance)
                except UnreachableError:
                    failure = self._rerouted(record, routed, "unreachable")
                    self._avoid.note(routed.run, self._clock())
                    attempts = attempts.unreachable(routed.instance)
                    await self._sleep(attempts.back_off_s * random.uniform(0.5, 1))
                    searched_s += self._clock() - began
                except BrokenError as error:
                    failure = self._rerouted(record, routed, "broken")
                    attempts = self._broken(attempts, routed, error, self._clock() - began)
                    if emitted and not request.restartable:
                        raise RefusedError(
                            HTTPStatus.SERVICE_UNAVAILABLE,
                            "the instance failed while generating structured output; retry",
                        ) from error
                    await self._check_over(request, attempts, routed, query)
                if len(emitted) >= request.max_new_tokens:
                    put(Choice([], "length"))
                    return

    # -- one attempt

    def _aged(self, info: messages.RequestInfo, arrival_s: float) -> messages.RequestInfo:
        """Return the request's info with its current age: a search can take a minute."""
        return replace(info, age_s=self._clock() - arrival_s)

    async def _route(
        self, query: messages.RouteQuery, arrival_s: float, give_up_s: float
    ) -> RoutedInstance:
        """Choose an instance; wait if there is none or all have failed the request. Raises
        RefusedError (503) at ``give_up_s``."""
        while self._clock() < give_up_s:
            routed = await self._directory.route(self._excluding(query, query.exclude))
            if routed is None:
                await self._directory.changed(RETRY_S)
                routed = await self._directory.route(self._excluding(query, ()))
            if routed is not None:
                self._metrics.placed(routed.reason)
                return routed
            query = replace(query, info=self._aged(query.info, arrival_s))
        raise RefusedError(
            HTTPStatus.SERVICE_UNAVAILABLE, "no instance was available for the request"
        )

    def _excluding(
        self, query: messages.RouteQuery, failed: tuple[str, ...]
    ) -> messages.RouteQuery:
        """Exclude instances that have failed the request, and unreachable ones."""
        runs = [member.run for member in self._directory.members.values()]
        avoided = self._avoid.names(runs, self._clock())
        return replace(query, exclude=(*failed, *avoided.difference(failed)))

    async def _attempt(
        self,
        request: TokenRequest,
        routed: RoutedInstance,
        query: messages.RouteQuery,
        attempts: Attempts,
        put: Put,
    ) -> None:
        acquitted_s = self._clock() + attempts.probation_s(self._directory.explained)
        arrived = False
        settling: asyncio.Task[None] | None = None

        def settle() -> asyncio.Task[None]:
            return asyncio.create_task(self._directory.settle(routed, query.info.route_id))

        def take(choice: Choice) -> None:
            nonlocal arrived, settling
            if not arrived:
                arrived = True
                self._avoid.clear(routed.run)
            if choice.token_ids or choice.finish_reason:
                if query.trial and settling is None and self._clock() > acquitted_s:
                    settling = settle()
                put(choice)

        try:
            await self._client.stream(routed.instance, routed.address, request, take)
        finally:
            if settling is None and (query.trial or not arrived):
                settling = settle()
            if settling is not None:
                await settling

    # -- failed attempts

    def _rerouted(
        self, record: ServedRequest, routed: RoutedInstance, reason: str
    ) -> dict[str, str]:
        """Count the attempt; return fields for the log line of the next one."""
        self._metrics.rerouted(reason)
        record.num_reroutes += 1
        return {"reason": str(reason), "from_instance": routed.instance}

    def _broken(
        self, attempts: Attempts, routed: RoutedInstance, error: BrokenError, held_s: float
    ) -> Attempts:
        if isinstance(error, SilentError):
            self._avoid.note(routed.run, self._clock())
            held_s -= self._silence_s
        if self._directory.is_leaving(routed.run):
            return attempts.handed_back(routed.instance)  # cut off at the end of its grace
        return attempts.broken(routed.run, max(0.0, held_s))

    async def _check_over(
        self,
        request: TokenRequest,
        attempts: Attempts,
        routed: RoutedInstance,
        query: messages.RouteQuery,
    ) -> None:
        """Raise RefusedError (500) when the request has no attempt left."""
        explained = self._directory.explained
        if not attempts.is_over(explained):
            return
        *_, last = attempts.breaks
        if query.trial and last.lasted_s <= attempts.probation_s(explained):
            runs = tuple(found.run for found in attempts.counted(explained))
            await self._directory.settle(routed, query.info.route_id, runs)
        else:
            await self._sleep(EXPLAIN_S)
            if not attempts.is_over(self._directory.explained):
                return
        self._metrics.poisoned()
        log.error(
            "request given up",
            id=request.request_id,
            instances=[found.run.instance for found in attempts.breaks],
        )
        raise RefusedError(
            HTTPStatus.INTERNAL_SERVER_ERROR,
            f"{len(attempts.breaks)} instances failed while running the request; giving up",
        )

    async def _watch(self) -> None:
        """Break off streams from instances that no cell has had for PATIENCE_S: their engine may
        hang while their server still answers."""
        missing_since: dict[str, float] = {}
        while True:
            await asyncio.sleep(1)
            now, members = self._clock(), self._directory.members
            missing_since = {
                name: missing_since.get(name, now) for name in self._client.streaming - set(members)
            }
            for name, since in missing_since.items():
                if now - since > PATIENCE_S:
                    log.warning("streams of unknown instance closed", instance=name)
                    self._client.break_off(name)
