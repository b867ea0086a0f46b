"""Prompts with a common beginning are computed once by the emulated engine."""

import asyncio
from dataclasses import dataclass, field

import pytest
from support.iterated import QueueReader
from support.token_requests import token_request

from macroserve.core.batch import BatchKind, BatchResult
from macroserve.core.latency import LatencyModel
from macroserve.core.request import Request, Slo
from macroserve.core.scheduler.config import InstanceConfig
from macroserve.core.scheduler.scheduler import InstanceScheduler
from macroserve.core.scheduler.sequence import State
from macroserve.core.status import Pool
from macroserve.core.strategies import STRATEGIES
from macroserve.engine.emulated import EMULATED_DEVICE, EMULATED_MODEL, EmulatedEngine
from macroserve.engine.emulated_executor import EmulatedExecutor
from macroserve.engine.emulated_prefixes import PrefixCache
from macroserve.engine.settings import EngineSettings

SLO = Slo(ttft_s=600.0, tpot_s=60.0)
BLOCK_SIZE, NUM_BLOCKS = 16, 200
PROMPT = list(range(1000))


@dataclass
class World:
    """A scheduler and an executor in virtual time."""

    strategy: str
    cache: PrefixCache | None
    num_blocks: int = NUM_BLOCKS
    max_num_seqs: int = 16
    now: float = 0.0
    results: list[BatchResult] = field(default_factory=list)

    def __post_init__(self) -> None:
        latency = LatencyModel(EMULATED_MODEL, EMULATED_DEVICE)
        self.executor = EmulatedExecutor(latency, lambda: self.now, self._sleep, self.cache)
        config = InstanceConfig(
            strategy=STRATEGIES[self.strategy],
            pool=Pool.LP,
            slo=SLO,
            num_blocks=self.num_blocks,
            block_size=BLOCK_SIZE,
            max_num_seqs=self.max_num_seqs,
            max_batch_tokens=512,
            max_model_len=4096,
        )
        self.policy = InstanceScheduler(config, latency, self.cache and self.cache.record)

    async def _sleep(self, seconds: float) -> None:
        self.now += seconds

    def add(self, name: str, prompt: list[int], num_tokens: int = 5, **fields: str) -> QueueReader:
        reader = QueueReader()
        self.executor.add(token_request(name, prompt, num_tokens, **fields), reader)
        request = Request(name, self.now, len(prompt), num_tokens, SLO)
        assert self.policy.add_request(request, self.now) is None
        return reader

    def step(self) -> bool:
        """Run one batch; return whether there was one."""
        batch = self.policy.schedule(self.now)
        if batch.kind is BatchKind.IDLE:
            return False
        result = asyncio.run(self.executor.run(batch))
        self.results.append(result)
        self.policy.update(batch, result, self.now)
        for name in result.finished:
            self.executor.remove(name)
        return True

    def finish(self) -> float:
        """Serve all requests; return the seconds that it took."""
        began = self.now
        while self.step():
            blocks = self.policy.running.blocks
            assert 0 <= blocks.free <= self.num_blocks
        assert not self.executor.streams, "requests never end"
        self.policy.running.blocks.check()
        return self.now - began


@pytest.fixture(params=STRATEGIES)
def world(request: pytest.FixtureRequest) -> World:
    return World(request.param, PrefixCache(NUM_BLOCKS, BLOCK_SIZE))


def test_same_prompt_again_computes_its_last_block_alone(world: World) -> None:
    world.add("first", PROMPT)
    first_s = world.finish()
    world.results.clear()
    reader = world.add("again", PROMPT)
    again_s = world.finish()
    num_cached = [choice.num_cached for choice in asyncio.run(reader.rest())]
    assert num_cached == [992, 0, 0, 0, 0], "with the first token"
    status = world.policy.status(world.now)
    assert (status.prompt_tokens, status.cached_tokens) == (2000, 992)
    assert sum(result.prefilled.get("again", 0) for result in world.results) == 8
    assert again_s < 0.6 * first_s


def test_prompt_that_waits_for_another_with_its_beginning_costs_less(world: World) -> None:
    world.add("first", PROMPT)
    world.step()
    world.add("second", [*PROMPT[:496], 5, 6, 7])
    seq = world.policy.sequences["second"]
    assert seq.num_cached == 496 and seq.num_to_prefill == 3
    assert world.policy.status(world.now).waiting_tokens <= 3 + 1000 - 512


def test_waiting_prompt_costs_less_once_more_of_its_beginning_was_computed(
    world: World,
) -> None:
    world = World(world.strategy, world.cache, max_num_seqs=1)
    world.add("first", PROMPT, num_tokens=3)
    world.add("second", [*PROMPT[:992], 5])
    second = world.policy.sequences["second"]
    cost_s, start_by_s = [second.prefill_s], [second.start_by_s]
    while second.state is State.WAITING:
        world.step()
        cost_s.append(second.prefill_s)
        start_by_s.append(second.start_by_s)
    assert second.num_cached == 992
    assert cost_s == sorted(cost_s, reverse=True) and cost_s[-1] < 0.1 * cost_s[0]
    assert start_by_s == sorted(start_by_s)


@pytest.mark.parametrize("num_blocks", [70, 100, NUM_BLOCKS])
def test_requests_with_common_beginnings_end_with_little_memory(
    world: World, num_blocks: int
) -> None:
    cache = PrefixCache(num_blocks, BLOCK_SIZE)
    world = World(world.strategy, cache, num_blocks)
    for number in range(24):
        beginning = PROMPT[: (0, 100, 400, 1000)[number % 4]]
        world.add(str(number), [*beginning, 9000 + number], 1 + 7 * (number % 5))
        if number % 3 == 0:
            world.step()
    world.finish()
    assert world.policy.running.blocks.free == num_blocks
    assert (cache.record.free, cache.record.allocated) == (num_blocks, 0)


@pytest.mark.parametrize("fields", [{"cache_salt": "of another tenant"}, {"adapter": "sql"}])
def test_prompt_of_another_tenant_or_adapter_finds_nothing(
    world: World, fields: dict[str, str]
) -> None:
    world.add("first", PROMPT)
    world.finish()
    world.add("other", PROMPT, **fields)
    world.finish()
    assert world.policy.status(world.now).cached_tokens == 0


@pytest.mark.parametrize(
    ("setting", "hybrid", "expected"),
    [
        ("Auto", "Off", "on: prompts share the blocks of a common prefix"),
        ("On", "Off", "on: prompts share the blocks of a common prefix"),
        ("Off", "Off", "off: spec.engine.prefixCaching is Off"),
        ("On", "Auto", "on: prompts share the blocks of a common prefix"),
        ("Auto", "On", "off: a block may hold hidden states (status.hybridCache), which are not"),
    ],
)
def test_engine_tells_what_became_of_prefix_caching(
    setting: str, hybrid: str, expected: str
) -> None:
    settings = EngineSettings(
        model="tiny",
        served_name="tiny",
        max_model_len=2048,
        strategy="aptserve",
        slo=SLO,
        emulated=True,
        kv_cache_bytes=8 << 30,
        hybrid_cache=hybrid,
        prefix_caching=setting,
    )
    assert EmulatedEngine(settings, Pool.LP).shape.prefix_caching.startswith(expected)
