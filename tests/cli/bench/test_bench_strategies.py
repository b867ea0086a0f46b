"""A real engine beside the simulator: the profile between them, and what is compared."""

import asyncio
from dataclasses import replace
from itertools import islice

import pytest

from macroserve.cli.bench import strategies
from macroserve.cli.bench.strategies import Profile, Trial, _loads, _orders_kept, _predicted
from macroserve.cli.tiny_model import ensure_tiny_model
from macroserve.core.latency import DeviceShape, ModelShape
from macroserve.core.request import Slo
from macroserve.engine.engine import EngineShape
from macroserve.engine.settings import EngineSettings
from macroserve.sim.arrivals import Arrival
from macroserve.sim.instance import Exact

MODEL = ModelShape(4, 256, 4, 4, 64, 1024, 2000)
LATENCY = Exact(MODEL, DeviceShape(1e12, 1e11), (0.0, 1.0, 0.0, 0.0, 0.01))
PROFILE = Profile(EngineShape(500, 32, 16), LATENCY, 0.002, 0.0005, (0.9, 1.0, 1.1))


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


@pytest.mark.integration
def test_a_profile_predicts_the_engine_that_it_is_of(settings, monkeypatch):
    from macroserve.engine.vllm.environment import prepare_environment

    prepare_environment()
    from macroserve.cli.bench.real_engine import serve, started

    for name, less in (("NUM_MIXED", 4), ("OUTPUT_TOKENS", 30), ("MANY", 4)):
        monkeypatch.setattr(strategies, name, less)
    model = replace(settings, model=str(ensure_tiny_model()), dtype="float32")
    arrivals = [Arrival(0.05 * i, 100, 10, max_new_tokens=10) for i in range(4)]

    async def run():
        async with started(model) as engine:
            profile = await strategies._profile(engine, model)
            return profile, await serve(engine, arrivals, model.slo, "load")

    profile, answers = asyncio.run(run())
    assert 1e-4 < profile.step_s < 1.0
    assert [len(answer.tokens_s) for answer in answers] == [10] * 4
    assert all(answer.tokens_s == tuple(sorted(answer.tokens_s)) for answer in answers)
    assert all(answer.attained(Slo(60.0, 60.0)) for answer in answers)
    assert not any(answer.attained(Slo(1e-6, 60.0)) for answer in answers)
    assert not any(answer.attained(Slo(60.0, 1e-6)) for answer in answers)
    # On a machine that does other things, too: within a factor of three.
    predicted_s = profile.seconds((), 1, 105)
    assert min(answers[-1].gaps_s) / 3 < predicted_s < 3 * max(answers[-1].gaps_s)
