"""The dispatcher handles each way in which an attempt can end."""

import asyncio
import logging

import pytest
from aiohttp import web
from msgspec.structs import replace
from support.emulated_world import token_request
from support.fake_instances import (
    DRAINED,
    Attempt,
    Behavior,
    Fakes,
    Framed,
    answers,
    dies,
    dies_after_a_token,
    ends_the_connection,
    fakes,
    good,
    hangs,
    hangs_after_a_token,
    hangs_at_the_call,
    refuses,
    resets,
    sends,
    taken_note,
)
from support.slo_classes import BATCH, default_class

from macroserve.api.messages import RequestInfo
from macroserve.core.routing.attempts import InstanceRun
from macroserve.engine.tokens import DEAD_END, Choice, RefusedError, StopStringMet
from macroserve.serving.ingress import dispatcher as dispatch
from macroserve.serving.ingress.request_targets import in_class
from macroserve.serving.security.calls import PROOF_HEADER


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "EXPLAIN_S", 0.05)


async def tokens(dispatcher: dispatch.Dispatcher, count: int = 5) -> list[int]:
    found: list[Choice] = []
    request = token_request("client\nid", count)
    request = replace(request, info=dispatcher.info(request.request_id))
    await dispatcher.stream(request, found.append)
    return [t for choice in found for t in choice.token_ids or ()]


async def refusal(dispatcher: dispatch.Dispatcher, count: int = 5) -> RefusedError:
    with pytest.raises(RefusedError) as refused:
        await tokens(dispatcher, count)
    return refused.value


@pytest.mark.parametrize(
    "breaks",
    [
        dies,
        dies_after_a_token,
        answers(500, "{}"),
        refuses(500, "{}"),
        sends(error="Internal server error"),
        ends_the_connection,
    ],
)
async def test_request_that_breaks_instances_ends_after_three(
    breaks: Behavior, caplog: pytest.LogCaptureFixture
) -> None:
    names = dict.fromkeys("abcdef", breaks)
    with caplog.at_level(logging.ERROR):
        async with fakes(**names) as world:
            refused = await refusal(world.dispatcher, 100)
            assert world.metric("macroserve_requests_poisoned_total") == 1
            assert world.metric("macroserve_reroutes_total", reason="broken") == 3
    assert refused.status == 500
    assert world.calls == ["a", "b", "c"]
    assert [query.trial for query in world.directory.queries] == [False, False, True]
    assert world.directory.settled[-1] == (
        "c",
        (InstanceRun("a", 1), InstanceRun("b", 1), InstanceRun("c", 1)),
    )
    [record] = [r for r in caplog.records if r.name == dispatch.__name__]
    assert record.__dict__["id"] == "client\nid"
    assert record.__dict__["instances"] == ["a", "b", "c"]
    assert "1, 2, 3" not in str(record.__dict__)


async def test_grammar_without_a_way_on_ends_after_one_attempt() -> None:
    dead_end = sends(8, finish="abort", stop=DEAD_END)
    async with fakes(a=dead_end, b=good) as world:
        refused = await refusal(world.dispatcher)
        assert (refused.status, world.calls) == (400, ["a"])
        assert world.metric("macroserve_reroutes_total", reason="broken") == 0


async def test_stream_after_two_broken_attempts_is_whole() -> None:
    async with fakes(a=dies_after_a_token, b=dies, c=good) as world:
        assert await tokens(world.dispatcher) == [7, 1, 2, 3, 4]
        assert world.metric("macroserve_requests_total", outcome="ok") == 1


async def test_adapter_of_a_request_is_named_to_every_cell_and_instance(
    caplog: pytest.LogCaptureFixture,
) -> None:
    models: list[str | None] = []

    def noted(behavior: Framed) -> Behavior:
        @Framed
        async def behave(attempt: Attempt) -> web.StreamResponse | None:
            models.append(attempt.request.adapter)
            return await behavior.behave(attempt)

        return behave

    with caplog.at_level(logging.INFO):
        async with fakes(a=noted(dies_after_a_token), b=noted(good)) as world:
            request = token_request("r", 5, adapter="sql")
            await world.dispatcher.stream(request, lambda choice: None)
            await tokens(world.dispatcher)
    assert models == ["sql", "sql", None, None]
    assert [query.adapter for query in world.directory.queries] == models
    lines = [r.__dict__["model"] for r in caplog.records if r.getMessage() == "request finished"]
    assert lines == ["sql", "model"]


async def test_breaks_that_another_request_caused_do_not_end_a_stream() -> None:
    async with fakes(a=dies, b=dies, c=dies, d=good) as world:
        world.directory.explained = frozenset([InstanceRun("b", 1)])
        assert len(await tokens(world.dispatcher)) == 5
        assert [query.trial for query in world.directory.queries] == [False, False, False, True]


async def test_break_after_the_trial_waits_for_an_explanation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("macroserve.core.routing.attempts.MIN_PROBATION_S", 0.0)

    async def explain(seconds: float) -> None:
        if seconds == dispatch.EXPLAIN_S:
            world.directory.explained = frozenset([InstanceRun("c", 1)])

    async with fakes(sleep=explain, a=dies, b=dies, c=dies_after_a_token, d=good) as world:
        assert len(await tokens(world.dispatcher)) == 5


async def test_instances_that_leave_do_not_count_as_broken() -> None:
    names = dict.fromkeys("abcde", dies_after_a_token)
    async with fakes(**names, f=good) as world:
        world.directory.leaving = set("abcd")
        assert len(await tokens(world.dispatcher, 20)) == 20
        assert not any(query.trial for query in world.directory.queries)


async def test_hand_backs_do_not_count_as_broken() -> None:
    async with fakes(**dict.fromkeys("abcde", DRAINED), f=good) as world:
        assert len(await tokens(world.dispatcher)) == 5
        assert world.metric("macroserve_reroutes_total", reason="drain") == 5
        assert not any(query.trial for query in world.directory.queries)


async def claims_the_token(request: web.Request) -> web.StreamResponse:
    """Sends back for a proof what it was sent."""
    token = request.headers["Authorization"].removeprefix("Bearer ")
    return web.json_response({}, status=400, headers={PROOF_HEADER: token.split(".")[1]})


async def test_request_that_waited_for_an_instance_reaches_it_with_its_whole_age() -> None:
    now, ages = 100.0, list[float]()

    @Framed
    async def seen(attempt: Attempt) -> web.StreamResponse | None:
        ages.append(attempt.request.info.age_s)
        return await good.behave(attempt)

    async with fakes(clock=lambda: now, a=seen) as world:
        member = world.directory.members.pop("a")

        async def changed(timeout_s: float) -> None:
            nonlocal now
            now += 7.0
            world.directory.members["a"] = member

        world.directory.changed = changed
        assert len(await tokens(world.dispatcher)) == 5
    assert ages == [7.0]
    assert [query.info.age_s for query in world.directory.queries] == [0.0, 0.0]


@pytest.mark.parametrize(
    "stranger",
    [
        None,
        answers(401, '{"error": {"message": "not authorized"}}'),
        answers(404, "<html>no such page</html>", "text/html"),
        answers(404, '{"error": {"message": "no such page"}}'),
        answers(400, "<html>bad</html>", "text/html"),
        answers(200, "<html>welcome</html>", "text/html"),
        answers(307, "", "text/plain"),
        answers(400, '{"error": {"message": "a good imitation"}}'),
        answers(500, "{}"),
        answers(503, "{}"),
        good,
        claims_the_token,
    ],
)
async def test_unreachable_and_unproved_addresses_lead_to_another_instance(
    stranger: Behavior | None,
) -> None:
    async with fakes(**dict.fromkeys("abcd", stranger), e=good, strangers="abcd") as world:
        for _ in range(3):
            assert len(await tokens(world.dispatcher)) == 5
        assert world.metric("macroserve_reroutes_total", reason="unreachable") == 4
        assert world.metric("macroserve_reroutes_total", reason="broken") == 0
        # Known by now, they are not asked again.
        assert set(world.directory.queries[-1].exclude) == set("abcd")


async def test_unreachable_instances_are_tried_ever_more_slowly_and_for_a_bounded_time() -> None:
    now = 0.0
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        slept.append(seconds)

    async with fakes(clock=lambda: now, sleep=sleep, a=None) as world:
        refused = await refusal(world.dispatcher)
    assert refused.status == 503
    assert dispatch.GIVE_UP_S <= now < dispatch.GIVE_UP_S + 3
    assert len(slept) < 100
    assert max(slept) <= 2.0


async def test_proved_refusal_is_the_clients_fault_and_is_not_tried_again() -> None:
    async with fakes(a=refuses(400, '{"error": {"message": "too long"}}'), b=good) as world:
        refused = await refusal(world.dispatcher)
    assert (refused.status, refused.message) == (400, "too long")
    assert world.calls == ["a"]


@pytest.mark.parametrize("silent", [hangs, hangs_at_the_call, hangs_after_a_token])
async def test_silent_instance_is_left_and_avoided(silent: Behavior) -> None:
    async with fakes(silence_s=0.2, a=silent, b=good) as world:
        assert len(await tokens(world.dispatcher)) == 5
        assert len(await tokens(world.dispatcher)) == 5
        assert world.calls == ["a", "b", "b"]
        assert world.metric("macroserve_reroutes_total", reason="broken") == 1


async def test_time_in_a_queue_is_not_time_without_an_instance() -> None:
    now = 0.0

    @Framed
    async def drained_after_long(attempt: Attempt) -> web.StreamResponse | None:
        nonlocal now
        now += 500.0
        return await DRAINED.behave(attempt)

    async with fakes(clock=lambda: now, a=drained_after_long, b=good) as world:
        assert len(await tokens(world.dispatcher)) == 5


async def test_stream_under_a_grammar_does_not_go_on_after_tokens() -> None:
    request = token_request("r", 5, sampling={"structured_outputs": {"regex": "a"}})
    async with fakes(a=dies_after_a_token, b=good) as world:
        with pytest.raises(RefusedError) as refused:
            await world.dispatcher.stream(request, lambda choice: None)
    assert refused.value.status == 503 and world.calls == ["a"]


async def cancelled_after(world: Fakes, num_tokens: int, message: StopStringMet | None) -> None:
    """Cancel a stream that has so many tokens, and wait until it has ended."""
    enough = asyncio.Event()
    count = 0

    def put(choice: Choice) -> None:
        nonlocal count
        count += len(choice.token_ids or ())
        if count >= num_tokens:
            enough.set()

    task = asyncio.create_task(world.dispatcher.stream(token_request("r", 100), put))
    await enough.wait()
    task.cancel(message)
    await asyncio.wait([task])
    assert task.cancelled()


async def test_instance_is_told_of_a_stop_string_and_of_its_own_tokens_alone() -> None:
    async with fakes(a=dies_after_a_token, b=hangs_after_a_token) as world:
        await cancelled_after(world, 2, StopStringMet(2))
        assert [cancel.num_tokens for cancel in await world.cancels(1)] == [1]
        assert world.metric("macroserve_requests_total", outcome="ok") == 1


async def test_instance_of_a_client_that_leaves_is_told_of_no_stop_string() -> None:
    async with fakes(a=hangs_after_a_token) as world:
        await cancelled_after(world, 1, None)
        assert [cancel.num_tokens for cancel in await world.cancels(1)] == [None]
        assert world.metric("macroserve_requests_total", outcome="cancelled") == 1


@pytest.mark.parametrize("answer", [hangs, resets, answers(500, "{}"), taken_note])
async def test_request_that_met_a_stop_string_ends_whatever_its_instance_answers(
    answer: Behavior,
) -> None:
    async with fakes(on_cancel=answer, a=hangs_after_a_token) as world:
        async with asyncio.timeout(5):
            await cancelled_after(world, 1, StopStringMet(1))
        assert len(await world.cancels(1)) == 1
        assert world.metric("macroserve_requests_total", outcome="ok") == 1


async def test_request_of_a_class_takes_its_targets_to_cell_and_instance() -> None:
    infos: list[RequestInfo] = []

    @Framed
    async def keeps_the_info(attempt: Attempt) -> web.StreamResponse | None:
        infos.append(attempt.request.info)
        return await good.behave(attempt)

    async with fakes(a=dies, b=keeps_the_info) as world:
        with in_class(BATCH):
            await tokens(world.dispatcher)
        await tokens(world.dispatcher)
        asked = [(query.info.slo_class, query.info.slo) for query in world.directory.queries]
        default = ("default", default_class().slo)
        assert asked == [(BATCH.name, BATCH.slo)] * 2 + [default] * 2
        assert [(info.slo_class, info.slo) for info in infos] == [asked[1], asked[-1]]
        ended = {
            name: world.metric("macroserve_requests_total", slo_class=name)
            for name in ("default", BATCH.name)
        }
        assert ended == {"default": 1, "batch": 1}
