"""A real engine beside the simulator: the profile between them, and what is compared."""

import asyncio
from dataclasses import asdict, replace
from itertools import accumulate, islice

import pytest

from macroserve.cli.bench import strategies
from macroserve.cli.bench.real_engine import Answer, serve, started
from macroserve.cli.bench.strategies import Profile, Trial, _loads, _orders_kept, _predicted
from macroserve.cli.tiny_model import ensure_tiny_model
from macroserve.core.latency import DeviceShape, ModelShape
from macroserve.core.request import Slo
from macroserve.engine.engine import EngineShape
from macroserve.engine.settings import EngineSettings
from macroserve.engine.vllm.environment import prepare_environment
from macroserve.sim.arrivals import Arrival
from macroserve.sim.instance import Exact

MODEL = ModelShape(4, 256, 4, 4, 64, 1024, 2000)
LATENCY = Exact(MODEL, DeviceShape(1e12, 1e11), (0.0, 1.0, 0.0, 0.0, 0.01))
PROFILE = Profile(
    EngineShape(500, 32, 16, "off: not here"), LATENCY, 0.002, 0.0005, (0.9, 1.0, 1.1)
)


@pytest.fixture
def settings():
    return EngineSettings(
        model="tiny",
        served_name="tiny",
        max_model_len=1024,
        strategy="vllm",
        slo=Slo(2.0, 0.1),
        max_num_seqs=16,
        max_batch_tokens=512,
    )


def test_a_batch_takes_what_the_engine_and_its_sequences_take():
    batch = [(100, 0)], 3, 600
    alone_s = LATENCY.predict(LATENCY.work(*batch))
    assert PROFILE.seconds(*batch) == pytest.approx(alone_s + 0.002 + 4 * 0.0005)


def test_the_simulated_engine_is_the_profiled_one(settings):
    engine = PROFILE.engine(replace(settings, strategy="sarathi"))
    assert (engine.config.num_blocks, engine.config.block_size) == (500, 32)
    assert (engine.config.max_num_seqs, engine.config.max_batch_tokens) == (16, 512)
    assert engine.config.strategy.name == "sarathi"
    assert list(islice(engine.noise, 4)) == [0.9, 1.0, 1.1, 0.9]
    assert engine.latency().coefficients == LATENCY.coefficients


def test_loads_are_shares_of_what_vllm_can_serve(settings):
    loads = _loads(PROFILE, settings, "ShareGPT")
    assert list(loads) == [f"sharegpt.{load:g}" for load in strategies.LOADS]
    nums = [len(arrivals) for arrivals in loads.values()]
    for num, load in zip(nums, strategies.LOADS, strict=True):
        assert num / nums[0] == pytest.approx(load / strategies.LOADS[0], rel=0.15)
    for each in [arrival for arrivals in loads.values() for arrival in arrivals]:
        assert each.max_new_tokens == each.num_output_tokens
        assert each.num_prompt_tokens + each.num_output_tokens < settings.max_model_len
    shares = [_predicted(PROFILE, settings, arrivals) for arrivals in loads.values()]
    assert shares[0] >= strategies.LEVEL > shares[-1]


@pytest.mark.parametrize(
    ("shares", "kept"),
    [
        ([(0.9, 0.95), (0.5, 0.4)], [True]),
        ([(0.9, 0.4), (0.5, 0.6)], [False]),
        ([(0.9, 0.7), (0.5, 0.7)], [True]),
        ([(0.9, 0.1), (0.88, 0.9)], []),
    ],
    ids=["kept", "turned", "not told apart", "too close to tell"],
)
def test_orders_count_where_the_engine_tells_strategies_apart(shares, kept):
    trials = [Trial("load", f"strategy {i}", *each) for i, each in enumerate(shares)]
    assert _orders_kept([*trials, Trial("another load", "strategy", 0.0, 1.0)]) == kept


def test_a_profile_is_found_from_what_the_engine_serves(settings, monkeypatch):
    """The engine's own gaps are those of a known profile, a stall of the machine among them."""
    stall, usual = 40.0, [0.9, 1.0, 1.0, 1.1, 1.0]

    class Served:
        shape = PROFILE.shape

        async def command(self, name):
            assert name == "latency"
            model, device = asdict(MODEL), asdict(LATENCY.device)
            return {"model": model, "device": device, "coefficients": LATENCY.coefficients}

    async def answered(engine, arrivals, slo, name):
        num = len(arrivals)
        gap_s = PROFILE.seconds((), num, num * strategies.CONTEXT_TOKENS)
        times_s = accumulate(gap_s * jitter for jitter in [1.0, *usual, stall])
        return [Answer(tuple(times_s))] * num

    monkeypatch.setattr(strategies, "serve", answered)
    found = asyncio.run(strategies._profile(Served(), settings))
    assert found.between_s == pytest.approx(PROFILE.between_s)
    assert found.sequence_s == pytest.approx(PROFILE.sequence_s)
    assert found.step_s == pytest.approx(PROFILE.step_s)
    assert found.jitter == pytest.approx((*usual, stall))


@pytest.mark.integration
def test_a_real_engine_is_profiled_and_serves(settings, monkeypatch):
    prepare_environment()
    for name, less in (("NUM_MIXED", 4), ("OUTPUT_TOKENS", 30), ("MANY", 4)):
        monkeypatch.setattr(strategies, name, less)
    model = replace(settings, model=str(ensure_tiny_model()), dtype="float32")
    arrivals = [Arrival(0.05 * i, 100, 10, max_new_tokens=10) for i in range(4)]

    async def run():
        async with started(model) as engine:
            profile = await strategies._profile(engine, model)
            return engine.shape, profile, await serve(engine, arrivals, model.slo, "load")

    shape, profile, answers = asyncio.run(run())
    assert profile.shape == shape
    assert profile.step_s > 0
    assert len(profile.jitter) == 29
    assert [len(answer.tokens_s) for answer in answers] == [10] * 4
    assert all(answer.tokens_s == tuple(sorted(answer.tokens_s)) for answer in answers)
    assert all(answer.attained(Slo(60.0, 60.0)) for answer in answers)
    assert not any(answer.attained(Slo(1e-6, 60.0)) for answer in answers)
    assert not any(answer.attained(Slo(60.0, 1e-6)) for answer in answers)
