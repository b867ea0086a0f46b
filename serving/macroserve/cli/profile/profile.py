"""A real engine on this machine: what batches take, what lies between them, and Apt-Serve's rho.

The latency model is the engine's own, as it learned it while it served.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from random import Random
from statistics import median

from macroserve.cli.real_engine import serve, started
from macroserve.core.instance.config import InstanceConfig
from macroserve.core.latency import LatencyModel
from macroserve.core.shapes import DeviceShape, ModelShape
from macroserve.core.strategy import strategy
from macroserve.core.views import Pool
from macroserve.engine.engine import EngineShape
from macroserve.engine.settings import EngineSettings
from macroserve.engine.vllm.engine import VllmEngine
from macroserve.sim.arrivals import Arrival
from macroserve.sim.instance import Engine, Exact

PLAIN, HYBRID = "vllm", "aptserve"
"""Strategies of the engines that are profiled: one keeps keys and values alone, the other hidden
states where the settings and the model allow it."""

NUM_TURNS, AT_A_TIME = 15, 4
"""Requests of all lengths teach the latency model, so many at a time, however slow it is."""

PROMPT_TOKENS, OUTPUT_TOKENS = 64, 200
FEW, MANY = 1, 32
"""Streams that decode together while an engine is profiled."""

NUM_ROUNDS = 3
"""Few and many in turns, so that a slow minute of the machine meets both."""

CONTEXT_TOKENS = PROMPT_TOKENS + OUTPUT_TOKENS // 2
"""Of each of them in the mean."""


@dataclass(frozen=True, slots=True)
class Profile:
    """shape: of an engine with the hybrid cache, if it can have it. latency: of its batches.
    between_s, sequence_s: from one batch's end to the next one's begin, and how much longer for
    each sequence. jitter: what steps of one stream took, in turn, as times their median.
    """

    shape: EngineShape
    latency: Exact
    between_s: float
    sequence_s: float
    jitter: tuple[float, ...]

    @property
    def step_s(self) -> float:
        """A decode step of one sequence."""
        return self.seconds((), 1, CONTEXT_TOKENS)

    def seconds(
        self, prefills: Sequence[tuple[int, int]], num_decodes: int, context: int, hidden: int = 0
    ) -> float:
        """Arguments as those of ``LatencyModel.work``."""
        batch_s = self.latency.predict(self.latency.work(prefills, num_decodes, context, hidden))
        return batch_s + self.between_s + self.sequence_s * (len(prefills) + num_decodes)

    def slowed(self, times: float) -> "Profile":
        """Of the same engine while all that it does takes so many times as long."""
        latency, rebuild_s = self.latency, self.latency.rebuild_s_per_token
        coefficients = [times * coefficient for coefficient in latency.coefficients]
        if rebuild_s is not None:
            rebuild_s *= times
        return replace(
            self,
            latency=Exact(latency.model, latency.device, coefficients, rebuild_s),
            between_s=times * self.between_s,
            sequence_s=times * self.sequence_s,
        )

    def engine(self, settings: EngineSettings) -> Engine:
        """As the simulator has it."""
        learned, block_size = self.latency, self.shape.block_size
        hidden_slots = None
        if learned.rebuild_s_per_token is not None:
            hidden_slots = block_size * learned.model.kv_size // learned.model.hidden_size
        config = InstanceConfig(
            strategy=strategy(settings.strategy),
            pool=Pool.LP,
            slo=settings.slo,
            num_blocks=self.shape.num_blocks,
            block_size=block_size,
            max_num_seqs=settings.max_num_seqs,
            max_batch_tokens=settings.max_batch_tokens,
            max_model_len=settings.max_model_len,
            hidden_slots=hidden_slots,
        )
        return Engine(
            config,
            self.seconds,
            lambda: LatencyModel(
                learned.model, learned.device, learned.coefficients, learned.rebuild_s_per_token
            ),
            cycle(self.jitter),
        )


async def measure(settings: EngineSettings) -> Profile:
    """Of an engine with these settings, whatever their strategy. Starts it twice."""
    async with started(replace(settings, strategy=PLAIN)) as engine:
        profile = await measure_engine(engine, settings)
    async with started(replace(settings, strategy=HYBRID)) as engine:
        rho_s = (await engine.command("latency"))["rebuild_s_per_token"]
        shape = engine.shape
    learned = profile.latency
    latency = Exact(learned.model, learned.device, learned.coefficients, rho_s)
    return replace(profile, shape=shape, latency=latency)


async def measure_engine(engine: VllmEngine, settings: EngineSettings) -> Profile:
    """Its latency model learns from prompts of all lengths, a few at a time."""
    random = Random(0)
    longest = settings.max_model_len // 2
    for turn in range(NUM_TURNS):
        mixed = [
            Arrival(0.0, random.randrange(1, longest), random.randrange(1, 60))
            for _ in range(AT_A_TIME)
        ]
        await serve(engine, mixed, settings.slo, f"mixed-{turn}")
    learned = await engine.command("latency")
    latency = Exact(
        ModelShape(**learned["model"]), DeviceShape(**learned["device"]), learned["coefficients"]
    )
    few: list[list[float]] = []
    many: list[list[float]] = []
    for round_ in range(NUM_ROUNDS):
        few.append(await _gaps_s(engine, settings, FEW, f"round-{round_}"))
        many.append(await _gaps_s(engine, settings, MANY, f"round-{round_}"))
    lone_gap_s = _usual_s(few)
    alone_s = lone_gap_s - _decode_s(latency, FEW)
    together_s = _usual_s(many) - _decode_s(latency, MANY)
    sequence_s = max(0.0, (together_s - alone_s) / (MANY - FEW))
    return Profile(
        engine.shape,
        latency,
        max(0.0, alone_s - sequence_s * FEW),
        sequence_s,
        tuple(gap_s / lone_gap_s for gaps_s in few for gap_s in gaps_s),
    )


async def step_s(engine: VllmEngine, settings: EngineSettings, name: str) -> float:
    """What ``Profile.step_s`` told of an engine, now. name: so that no two requests have one id."""
    return median(await _gaps_s(engine, settings, FEW, name))


async def _gaps_s(
    engine: VllmEngine, settings: EngineSettings, num_streams: int, name: str
) -> list[float]:
    """What streams that decode together wait for their tokens."""
    streams = [Arrival(0.0, PROMPT_TOKENS, OUTPUT_TOKENS)] * num_streams
    answers = await serve(engine, streams, settings.slo, f"streams-{num_streams}-{name}")
    return [gap_s for answer in answers for gap_s in answer.gaps_s]


def _usual_s(rounds: Sequence[Sequence[float]]) -> float:
    return median(median(gaps_s) for gaps_s in rounds)


def _decode_s(latency: Exact, num_streams: int) -> float:
    """What their batch takes."""
    return latency.predict(latency.work((), num_streams, num_streams * CONTEXT_TOKENS))
