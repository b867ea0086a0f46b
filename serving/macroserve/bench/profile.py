"""Profile of a real engine on this machine: the times of its batches, and Apt-Serve's rho.

The latency model is the engine's own, learned while it served. The benchmark measures the time that
steps take beyond the model: between two batches, for effects that are not linear in the tokens, and
while requests come and go.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from random import Random
from statistics import median

import numpy as np

from macroserve.bench.real_engine import learned, serve, started
from macroserve.core.latency import LatencyModel
from macroserve.core.scheduler.config import InstanceConfig
from macroserve.core.status import Pool
from macroserve.core.strategies import strategy
from macroserve.engine.engine import EngineShape
from macroserve.engine.settings import EngineSettings
from macroserve.engine.vllm.engine import VllmEngine
from macroserve.sim.instance import FixedLatencyModel, InstanceSpec
from macroserve.sim.results import AT_END
from macroserve.sim.simulation import single_cell
from macroserve.workload.arrivals import Arrival

PLAIN, HYBRID = "prefill-first", "aptserve"
"""Strategies of the profiled engines: one caches keys and values only and separates prefills from
decodes, the other caches hidden states if the settings and the model allow it."""

NUM_TURNS, AT_A_TIME = 5, 4
"""Turns of concurrent requests of all lengths."""

PROMPT_TOKENS, OUTPUT_TOKENS = 64, 100
NUM_DECODES = (1, 2, 4, 8, 16, 32, 64)
"""Numbers of streams that decode together, up to the engine's limit."""

NUM_PREFILLED = (8, 32, 128, 512, 1024)
"""Tokens of the prompts that hold up a stream, up to the engine's limit."""

NUM_PROMPTS = 8
"""Prompts of each length, one after the other: far fewer than the stream has tokens."""

NUM_AT_ONCE, SHORT_PROMPT, SHORT_OUTPUT = 200, 100, 60
"""Requests that come at once, so that they end and begin all the time, and their maximum tokens."""

NUM_ROUNDS = 3
"""Rounds that each measure everything, so that a slow period of the machine affects all results."""

SATURATED = 0.9
"""Minimum share of the maximum tokens per second that a saturated device computes."""

CONTEXT_TOKENS = PROMPT_TOKENS + OUTPUT_TOKENS // 2
"""Mean tokens in the context of a decode."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Times of an engine's batches: its latency model, and the time that they take beyond it."""

    shape: EngineShape
    """The engine's shape, with the hybrid cache if the model supports it."""
    latency: FixedLatencyModel
    decodes_beyond_s: Mapping[int, float]
    """Seconds per step beyond the model, by number of decodes."""
    prefills_beyond_s: Mapping[int, float]
    """Seconds per step beyond the model, by number of prompt tokens."""
    churn: float
    """Factor on the time of all batches while requests come and go."""
    jitter: tuple[float, ...]
    """Successive step times of one stream relative to their median."""
    spread: float
    """Time of the slowest round relative to the fastest."""

    @property
    def step_s(self) -> float:
        """Return the time of a decode step of one sequence, seconds."""
        return self.decode_s(1)

    def decode_s(self, num_decodes: int) -> float:
        """Return the time of a decode step of sequences with ``CONTEXT_TOKENS`` each, seconds."""
        return self.seconds((), num_decodes, num_decodes * CONTEXT_TOKENS)

    def prefill_s(self, num_tokens: int) -> float:
        return self.seconds(((num_tokens, 0),), 0, 0)

    def seconds(
        self, prefills: Sequence[tuple[int, int]], num_decodes: int, context: int, hidden: int = 0
    ) -> float:
        """Return the seconds of a batch without churn; see ``LatencyModel.work``."""
        work = self.latency.work(prefills, num_decodes, context, hidden)
        seconds = self.latency.predict(work)
        if num_decodes:
            seconds += _between(self.decodes_beyond_s, num_decodes)
        if prefills:
            num_tokens = sum(num_tokens for num_tokens, _ in prefills)
            seconds += _between(self.prefills_beyond_s, num_tokens)
        return seconds

    @property
    def target_forward_size(self) -> int:
        """Return the fewest tokens of a batch that saturate the device (EconoServe, section 2), as
        a power of two up to the longest measured prompt."""
        sizes = [2**power for power in range(max(self.prefills_beyond_s).bit_length())]
        rates = {size: size / self.prefill_s(size) for size in sizes}
        most_per_s = max(rates.values())
        return next(size for size, rate in rates.items() if rate >= SATURATED * most_per_s)

    def instance_spec(self, settings: EngineSettings) -> InstanceSpec:
        """Return the simulator's description of the engine."""
        own, block_size = self.latency, self.shape.block_size
        hidden_states_per_block = None
        if own.rebuild_s_per_token is not None:
            hidden_states_per_block = block_size * own.model.kv_size // own.model.hidden_size
        config = InstanceConfig(
            strategy=strategy(settings.strategy),
            pool=Pool.LP,
            slo=settings.slo,
            num_blocks=self.shape.num_blocks,
            block_size=block_size,
            max_num_seqs=self.shape.max_num_seqs,
            max_batch_tokens=self.shape.max_batch_tokens,
            max_model_len=settings.max_model_len,
            hidden_states_per_block=hidden_states_per_block,
        )
        return InstanceSpec(
            config,
            self.seconds,
            lambda: LatencyModel(own.model, own.device, own.coefficients, own.rebuild_s_per_token),
            cycle([self.churn * times for times in self.jitter]),
        )

    def serves_within_s(self, settings: EngineSettings, arrivals: Sequence[Arrival]) -> float:
        """Return the time at which the last request ends."""
        spec = self.instance_spec(replace(settings, strategy=PLAIN))
        results = single_cell(spec, 1).serve(arrivals, stop=AT_END).results
        return max(result.arrival_s + result.completion_s for result in results)


async def measure(settings: EngineSettings) -> Profile:
    """Profile an engine with these settings, started once with each profiled strategy."""
    async with started(replace(settings, strategy=PLAIN)) as engine:
        profile = await measure_engine(engine, settings)
    async with started(replace(settings, strategy=HYBRID)) as engine:
        rho_s = (await engine.command("latency"))["rebuild_s_per_token"]
        shape = engine.shape
    own = profile.latency
    latency = FixedLatencyModel(own.model, own.device, own.coefficients, rho_s)
    return replace(profile, shape=shape, latency=latency)


async def measure_engine(engine: VllmEngine, settings: EngineSettings) -> Profile:
    """Return the engine's latency model and the time beyond it."""
    random = Random(0)
    longest = settings.max_model_len // 2
    at_once = _at_once(min(SHORT_PROMPT, longest), random)
    nums = [num for num in NUM_DECODES if num <= engine.shape.max_num_seqs]
    lengths = [num for num in NUM_PREFILLED if num <= longest]
    decodes: dict[int, list[list[float]]] = {num: [] for num in nums}
    prefills: dict[int, list[list[float]]] = {num: [] for num in lengths}
    served_s: list[float] = []
    for round_ in range(NUM_ROUNDS):
        for turn in range(NUM_TURNS):
            mixed = _mixed(longest, random)
            await serve(engine, mixed, settings.slo, f"mixed-{turn}-round-{round_}")
        for num in nums:
            decodes[num].append(await _gaps_s(engine, settings, num, f"round-{round_}"))
        for num in lengths:
            prefills[num].append(await _held_up_s(engine, settings, num, f"round-{round_}"))
        answers = await serve(engine, at_once, settings.slo, f"at-once-{round_}")
        served_s.append(max(answer.tokens_s[-1] for answer in answers))
    lone_s = _usual_s(decodes[1])
    bare = Profile(
        engine.shape,
        await learned(engine),  # at the end: by now it has met every kind of batch
        decodes_beyond_s={0: 0.0},
        prefills_beyond_s={0: 0.0},
        churn=1.0,
        jitter=tuple(gap_s / lone_s for gaps_s in decodes[1] for gap_s in gaps_s),
        spread=max(served_s) / min(served_s),
    )
    found = replace(
        bare,
        decodes_beyond_s={num: _usual_s(decodes[num]) - bare.decode_s(num) for num in nums},
        prefills_beyond_s={
            num: _usual_s(prefills[num]) - lone_s - bare.prefill_s(num) for num in lengths
        },
    )
    return replace(found, churn=median(served_s) / found.serves_within_s(settings, at_once))


def _mixed(longest: int, random: Random) -> list[Arrival]:
    return [
        Arrival(0.0, random.randrange(1, longest), random.randrange(1, SHORT_OUTPUT))
        for _ in range(AT_A_TIME)
    ]


def _at_once(longest: int, random: Random) -> list[Arrival]:
    """Return arrivals at 0 s whose ``max_new_tokens`` are the tokens that they get."""
    outputs = [random.randrange(1, SHORT_OUTPUT) for _ in range(NUM_AT_ONCE)]
    return [Arrival(0.0, random.randrange(1, longest), num, None, num) for num in outputs]


async def _gaps_s(
    engine: VllmEngine, settings: EngineSettings, num_streams: int, name: str
) -> list[float]:
    """Return the gaps between tokens of streams that decode together, seconds."""
    streams = [Arrival(0.0, PROMPT_TOKENS, OUTPUT_TOKENS)] * num_streams
    answers = await serve(engine, streams, settings.slo, f"streams-{num_streams}-{name}")
    return [gap_s for answer in answers for gap_s in answer.gaps_s]


async def _held_up_s(
    engine: VllmEngine, settings: EngineSettings, num_tokens: int, name: str
) -> list[float]:
    """Return the gaps of a stream that is held up by prompts of ``num_tokens``, seconds."""

    async def prompts() -> None:
        for turn in range(NUM_PROMPTS):
            prompt = [Arrival(0.0, num_tokens, 1)]
            await serve(engine, prompt, settings.slo, f"prompt-{num_tokens}-{turn}-{name}")

    gaps_s, _ = await asyncio.gather(
        _gaps_s(engine, settings, 1, f"beside-{num_tokens}-{name}"), prompts()
    )
    return sorted(gaps_s)[-NUM_PROMPTS:]


def _usual_s(rounds: Sequence[Sequence[float]]) -> float:
    return median(median(gaps_s) for gaps_s in rounds)


def _between(points: Mapping[int, float], at: int) -> float:
    """Interpolate linearly between points; beyond the last one, return its value."""
    return float(np.interp(at, list(points), list(points.values())))
