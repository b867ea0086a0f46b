"""A profile records the time that a real engine takes for its work."""

import asyncio
import json
from dataclasses import asdict, replace
from itertools import accumulate, islice
from pathlib import Path

import pytest
import typer
from support.profiled import LATENCY, MODEL, PROFILE, SETTINGS
from typer.testing import CliRunner

from macroserve.bench import profile as profiles
from macroserve.bench.profile import measure, measure_engine
from macroserve.bench.real_engine import Answer, serve, started
from macroserve.cli.profile.command import profile
from macroserve.cli.profile.report import document
from macroserve.core.request import Slo
from macroserve.engine.vllm.environment import prepare_environment
from macroserve.local.tiny_model import ensure_tiny_model
from macroserve.sim.instance import FixedLatencyModel
from macroserve.workload.arrivals import Arrival


@pytest.fixture
def settings():
    return SETTINGS


@pytest.mark.parametrize(
    ("batch", "beyond_s"),
    [
        (((), 1, 200), 0.002),
        (((), 2, 400), 0.003),
        (((), 40, 400), 0.002),
        ((((100, 0),), 0, 0), 0.00375),
        ((((80, 0), (48, 512)), 0, 0), 0.002),
        ((((8, 0),), 4, 600), 0.005 + 0.008),
    ],
    ids=["alone", "between", "beyond all", "a prompt", "two prompts", "both"],
)
def test_profile_batch_takes_its_latency_and_the_measured_overhead(batch, beyond_s):
    assert PROFILE.seconds(*batch) == pytest.approx(
        LATENCY.predict(LATENCY.work(*batch)) + beyond_s
    )


def test_profile_spec_has_the_settings_and_the_measured_noise(settings):
    spec = PROFILE.instance_spec(replace(settings, strategy="sarathi"))
    assert (spec.config.num_blocks, spec.config.block_size) == (500, 32)
    assert (spec.config.max_num_seqs, spec.config.max_batch_tokens) == (16, 512)
    assert spec.config.strategy.name == "sarathi"
    assert list(islice(spec.noise, 4)) == [0.9, 1.0, 1.1, 0.9]
    churning = replace(PROFILE, churn=2.0).instance_spec(settings)
    assert list(islice(churning.noise, 2)) == [1.8, 2.0]
    assert spec.latency().coefficients == LATENCY.coefficients


def test_profile_keeps_hidden_states_only_with_a_measured_cost(settings):
    def config(rebuild_s):
        latency = FixedLatencyModel(MODEL, LATENCY.device, LATENCY.coefficients, rebuild_s)
        spec = replace(PROFILE, latency=latency).instance_spec(
            replace(settings, strategy="aptserve")
        )
        assert spec.latency().rebuild_s_per_token == rebuild_s
        return spec.config

    assert config(None).hidden_states_per_block is None
    assert config(1e-6).hidden_states_per_block == 64


@pytest.mark.parametrize(
    ("prefills_s", "num_tokens"),
    [
        ({8: 0.010, 32: 0.010, 128: 0.011, 512: 0.040, 1024: 0.080}, 128),
        ({8: 0.010, 32: 0.010, 128: 0.013, 512: 0.040, 1024: 0.080}, 256),
        ({8: 0.010, 32: 0.010, 128: 0.010, 512: 0.010, 1000: 0.010}, 512),
        ({8: 0.001, 32: 0.004, 128: 0.016}, 8),
        ({8: 0.010, 32: 0.010, 128: 0.011, 512: 0.060, 1024: 0.200}, 128),
    ],
    ids=["measured", "between", "never saturated", "always saturated", "long ones cost more"],
)
def test_target_forward_size_is_the_least_that_saturates_the_device(prefills_s, num_tokens):
    idle = FixedLatencyModel(MODEL, LATENCY.device, (0.0, 0.0, 0.0, 0.0, 0.0))
    found = replace(PROFILE, latency=idle, prefills_beyond_s=prefills_s)
    assert found.target_forward_size == num_tokens
    assert document(found)["target_forward_size"] == num_tokens


@pytest.mark.parametrize(
    ("edits", "said"),
    [
        ({"type: vLLM": "type: Emulated"}, "there is no engine to measure"),
        ({"source: tiny": "source: /nowhere"}, "contains no checkpoint"),
        ({"strategy: unified": "strategy: best"}, "best"),
    ],
    ids=["emulated", "no model", "no such strategy"],
)
def test_profile_of_an_unsupported_manifest_names_the_reason(tmp_path, edits, said):
    text = Path("manifests/quickstart.yaml").read_text()
    for old, new in edits.items():
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "manifest.yaml").write_text(text)
    command = typer.Typer()
    command.command()(profile)
    result = CliRunner().invoke(command, ["-f", str(tmp_path / "manifest.yaml")])
    assert result.exit_code == 2
    assert said in result.output


def test_profile_is_fitted_from_the_served_requests(settings, monkeypatch):
    """The engine's own gaps are those of a known profile, a stall of the machine among them, and
    one round that meets a slow minute."""
    stall, usual, slow, churn = 40.0, [0.9, 1.0, 1.0, 1.1, 1.0], 1.6, 1.2
    came, mixed = [], []

    class Served:
        shape = PROFILE.shape
        prompts_s = 0.0

        async def command(self, name):
            assert name == "latency"
            assert len(came) == profiles.NUM_ROUNDS, "it has not met all batches yet"
            model, device = asdict(MODEL), asdict(LATENCY.device)
            return {"model": model, "device": device, "coefficients": LATENCY.coefficients}

    async def answered(engine, arrivals, slo, name):
        num, first = len(arrivals), arrivals[0]
        times = slow if name.endswith("-1") else 1.0
        if name.startswith("prompt"):
            engine.prompts_s = times * PROFILE.prefill_s(first.num_prompt_tokens)
            return [Answer((0.0,))]
        if name.startswith("at-once"):
            came.append(arrivals)
            took_s = times * churn * PROFILE.serves_within_s(settings, arrivals)
            return [Answer((0.0, took_s))]
        if name.startswith("mixed"):
            mixed.append(len(came))
        await asyncio.sleep(0)  # what comes with these streams
        gap_s = times * PROFILE.decode_s(num)
        gaps_s = [gap_s * jitter for jitter in (1.0, *usual, stall)]
        if "beside" in name:
            gaps_s += [gap_s + engine.prompts_s] * profiles.NUM_PROMPTS + [gap_s] * 20
        return [Answer(tuple(accumulate(gaps_s)))] * num

    monkeypatch.setattr(profiles, "serve", answered)
    found = asyncio.run(measure_engine(Served(), settings))
    assert list(found.decodes_beyond_s) == [1, 2, 4, 8, 16]
    assert list(found.prefills_beyond_s) == [8, 32, 128, 512]
    for num in found.decodes_beyond_s:
        assert found.decode_s(num) == pytest.approx(PROFILE.decode_s(num))
    for num in found.prefills_beyond_s:
        assert found.prefill_s(num) == pytest.approx(PROFILE.prefill_s(num))
    served_s = [profile.serves_within_s(settings, came[0]) for profile in (found, PROFILE)]
    assert served_s[0] == pytest.approx(churn * served_s[1])
    assert {len(arrivals) for arrivals in came} == {profiles.NUM_AT_ONCE}
    assert mixed == [num for num in range(profiles.NUM_ROUNDS) for _ in range(profiles.NUM_TURNS)]
    quick, hampered = (*usual, stall), [slow * jitter for jitter in (*usual, stall)]
    assert found.jitter == pytest.approx((*quick, *hampered, *quick))
    assert found.spread == pytest.approx(slow)


@pytest.mark.parametrize(("spread", "warned"), [(1.5, False), (1.6, True)])
def test_profile_with_rounds_that_disagree_warns(tmp_path, monkeypatch, spread, warned):
    async def measured(settings):
        return replace(PROFILE, spread=spread)

    monkeypatch.setattr(profiles, "measure", measured)
    command = typer.Typer()
    command.command()(profile)
    figures = tmp_path / "profile.json"
    arguments = ["-f", "manifests/quickstart.yaml", "--json", str(figures)]
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 0
    assert f"{spread:.2f} times as long as the fastest" in result.output
    assert ("the rounds differ too much" in result.stderr) is warned
    assert json.loads(figures.read_text())["spread"] == spread


@pytest.mark.integration
def test_profile_of_a_real_engine_is_measured_and_serves(settings, monkeypatch):
    prepare_environment()
    for name, less in (
        ("NUM_TURNS", 2),
        ("NUM_ROUNDS", 1),
        ("NUM_DECODES", (1, 4)),
        ("NUM_PREFILLED", (8, 32)),
        ("NUM_AT_ONCE", 20),
        ("OUTPUT_TOKENS", 30),
        ("SHORT_OUTPUT", 20),
    ):
        monkeypatch.setattr(profiles, name, less)
    model = replace(settings, model=str(ensure_tiny_model()), dtype="float32")
    arrivals = [Arrival(0.05 * i, 100, 10, max_new_tokens=10) for i in range(4)]

    async def run():
        profile = await measure(model)
        async with started(model) as engine:
            return engine.shape, profile, await serve(engine, arrivals, model.slo, "load")

    shape, profile, answers = asyncio.run(run())
    apart = {"hybrid_cache": "", "prefix_caching": "", "load_s": 0.0, "warm_up_s": 0.0}
    assert replace(profile.shape, **apart) == replace(shape, **apart)
    assert min(profile.shape.load_s, profile.shape.warm_up_s) > 0
    assert profile.shape.hybrid_cache.startswith("on: ")
    assert profile.shape.prefix_caching.startswith("off: a block may hold hidden states")
    assert shape.prefix_caching.startswith("on: ")
    assert profile.step_s > 0
    assert len(profile.jitter) == profiles.OUTPUT_TOKENS - 1
    rho_s = document(profile)["latency"]["rebuild_s_per_token"]
    assert 0 < rho_s < profile.step_s
    assert profile.seconds((), 4, 4000, 4000) > profile.seconds((), 4, 4000) + 3000 * rho_s
    json.dumps(document(profile))
    assert [len(answer.tokens_s) for answer in answers] == [10] * 4
    assert all(answer.tokens_s == tuple(sorted(answer.tokens_s)) for answer in answers)
    assert all(answer.attained(Slo(60.0, 60.0)) for answer in answers)
    assert not any(answer.attained(Slo(1e-6, 60.0)) for answer in answers)
    assert not any(answer.attained(Slo(60.0, 1e-6)) for answer in answers)
