"""An ingress sends prompts, also of continued streams, to the cell with their cached prefix."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace
from support.emulated_world import World, expected_tokens, running, token_request
from support.fake_instances import DRAINED, Behavior, dies, dies_after_a_token, fakes, good
from support.keys import live
from support.migration import migrate
from support.route_queries import route_query

from macroserve.api.messages import Placed, PrefixesMoved
from macroserve.core.status import CellView, Pool
from macroserve.core.strategies import strategy
from macroserve.engine.tokens import TokenRequest
from macroserve.serving.cell import scheduler
from macroserve.serving.ingress import cell_directory
from macroserve.serving.ingress.cell_directory import CellDirectory
from macroserve.serving.ingress.prefix_keys import prefix_keys
from macroserve.serving.ingress.session import session_key

NUM_PROMPTS, PROMPT_TOKENS = 9, 700
LP = Pool.LP
THREE = {"cell-0": {"a": LP}, "cell-1": {"b": LP}, "cell-2": {"c": LP}}


def prompt(number: int, round_: int = 0, num_tokens: int = 4) -> TokenRequest:
    request = token_request(f"{number}-{round_}", num_tokens, PROMPT_TOKENS)
    return replace(request, cache_salt=str(number))


async def place(
    world: World, request: TokenRequest, *exclude: str, ingress: CellDirectory | None = None
) -> str:
    """Have an ingress choose an instance for a request that never reaches it."""
    ingress = ingress or world.directory
    route_id = f"route-{len(exclude)}"
    query = route_query(
        route_id=route_id,
        num_prompt_tokens=PROMPT_TOKENS,
        exclude=exclude,
        prefix=await prefix_keys(request),
        session=session_key(request.session),
    )
    routed = await ingress.route(query)
    assert routed is not None
    await ingress.settle(routed, route_id)
    return routed.instance


class AnotherIngress(CellDirectory):
    """An ingress without requests of clients, which counts what it hears of others' requests."""

    num_heard = 0

    def _on_news(self, cell: CellView, news: Placed | PrefixesMoved) -> None:
        super()._on_news(cell, news)
        assert isinstance(news, Placed)
        self.num_heard += len(news.placements)


@asynccontextmanager
async def another_ingress(world: World) -> AsyncIterator[AnotherIngress]:
    async def discover() -> dict[str, str]:
        return dict(world.urls)

    directory = AnotherIngress(discover, live(), strategy(world.settings.strategy))
    await directory.start()

    async def connected() -> bool:
        return len(directory.summaries) == len(world.cells)

    try:
        await world.until(connected)
        yield directory
    finally:
        await directory.stop()


@pytest.mark.usefixtures("patient")
async def test_prompts_come_back_to_the_cell_that_has_their_beginning() -> None:
    async with running(THREE) as world:
        for round_ in range(4):
            requests = [prompt(number, round_) for number in range(NUM_PROMPTS)]
            order = [*requests[round_:], *requests[:round_]]
            await asyncio.gather(*(world.tokens(request) for request in order))

        async def all_counted() -> bool:
            cells = [cell.report().cell for cell in world.cells.values()]
            return sum(cell.finished for cell in cells) == 4 * NUM_PROMPTS

        await world.until(all_counted)
        cells = [cell.report().cell for cell in world.cells.values()]
        begun, found = (
            sum(cell.prompt_tokens for cell in cells),
            sum(cell.cached_tokens for cell in cells),
        )
        # By load alone, a prompt would return to its cell one time in three.
        assert found > 0.8 * begun * 3 / 4
        assert min(cell.finished for cell in cells) >= 4


@pytest.mark.parametrize("session", ["mine", None])
async def test_prompts_of_a_session_come_to_one_instance_whatever_they_are(
    session: str | None,
) -> None:
    async with running(THREE) as world:
        first, *others = (replace(prompt(i), session=session) for i in range(NUM_PROMPTS))
        await world.tokens(first)
        await asyncio.gather(*(world.tokens(request) for request in others))
        finished: list[int] = []

        async def all_counted() -> bool:
            finished[:] = sorted(cell.report().cell.finished for cell in world.cells.values())
            return sum(finished) == NUM_PROMPTS

        await world.until(all_counted)
        if session:
            assert finished == [0, 0, NUM_PROMPTS]
        else:
            assert finished[0] >= 2


# Another prompt of the session, or another request with the prompt's beginning.
SIMILAR = [
    (replace(prompt(0), session="mine"), replace(prompt(1), session="mine")),
    (prompt(0), prompt(0, round_=1)),
]


@pytest.mark.parametrize(("first", "second"), SIMILAR, ids=["session", "beginning"])
async def test_similar_requests_come_to_one_cell_by_any_ingress(
    first: TokenRequest, second: TokenRequest
) -> None:
    async with running(THREE) as world, another_ingress(world) as other:
        assert await place(world, first, "a", "b") == "c"

        async def heard() -> bool:
            return other.num_heard == 1

        await world.until(heard)
        assert await place(world, prompt(2), ingress=other) == "a", "by load"
        assert await place(world, second, ingress=other) == "c"


@pytest.mark.parametrize(("first", "second"), SIMILAR, ids=["session", "beginning"])
async def test_ingress_that_starts_later_sends_a_similar_request_to_the_same_cell(
    first: TokenRequest, second: TokenRequest
) -> None:
    async with running(THREE) as world:
        assert await place(world, first, "a", "b") == "c"
        async with another_ingress(world) as other:

            async def heard() -> bool:
                return other.num_heard == 1

            await world.until(heard)
            assert await place(world, second, ingress=other) == "c"


async def test_cell_that_is_gone_has_nothing_when_its_name_comes_back() -> None:
    async with running(THREE) as world:
        assert await place(world, prompt(0), "a", "b") == "c"
        assert await place(world, prompt(0)) == "c"
        await world.stop_cell("cell-2")
        del world.urls["cell-2"]

        async def gone() -> bool:
            return "c" not in world.directory.members

        await world.until(gone)
        await world.add_cell("cell-2")

        async def back() -> bool:
            return len(world.directory.summaries) == 3

        await world.until(back)
        assert await place(world, prompt(0)) == "a"


FIRST_OF_TWO = {"cell-0": {"a": LP, "d": LP}, "cell-1": {"b": LP}, "cell-2": {"c": LP}}


async def moved(world: World) -> None:
    """Have an ingress send a prompt to ``a``, and move that from the first cell to the last."""
    assert await place(world, prompt(0), "b", "c", "d") == "a"
    await migrate(world, "a", "cell-0", "cell-2")

    async def told() -> bool:
        found = {summary.cell.name: len(summary.members) for summary in world.directory.summaries}
        return found == {"cell-0": 1, "cell-1": 1, "cell-2": 2}

    await world.until(told)


async def test_prompt_follows_an_instance_that_moved_to_another_cell() -> None:
    async with running(FIRST_OF_TWO) as world:
        await moved(world)
        assert await place(world, prompt(0)) == "a"


async def test_move_with_beginnings_that_cannot_be_read_is_logged_and_costs_their_hits(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(scheduler, "pack_held", lambda held: "AAA")
    async with running(FIRST_OF_TWO) as world:
        await moved(world)
        assert await place(world, prompt(0)) != "a"
        warnings = [each for each in caplog.records if each.name == cell_directory.__name__]
        assert [each.__dict__["cell"] for each in warnings] == ["cell-0"]


async def test_stream_whose_instance_dies_goes_on_in_the_cell_that_has_its_prompt() -> None:
    async with running(THREE) as world:
        request = prompt(0, num_tokens=150)
        stream = asyncio.create_task(world.tokens(request))

        async def decodes() -> bool:
            return (await world.status("a")).num_decoding == 1

        await world.until(decodes)
        assert await place(world, request, "a", "b") == "c"
        world.crash("a")
        assert await stream == expected_tokens(request)
        assert world.metric("macroserve_reroutes_total", reason="broken") == 1

        async def counted() -> bool:
            return (await world.status("c")).finished == 1

        await world.until(counted)


@pytest.mark.parametrize("ends", [dies, dies_after_a_token, DRAINED], ids=["dies", "late", "drain"])
async def test_request_that_goes_on_elsewhere_carries_its_prefix(ends: Behavior) -> None:
    async with fakes(a=ends, b=ends, c=good) as world:
        await world.dispatcher.stream(prompt(0), lambda choice: None)
        assert [query.prefix for query in world.directory.queries] == [
            await prefix_keys(prompt(0))
        ] * 3
        assert len(world.directory.queries[0].placement.prefix_keys) == 9
