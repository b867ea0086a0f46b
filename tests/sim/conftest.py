"""Small instances, and reported loads, for tests of the simulator."""

from dataclasses import replace
from random import Random

import pytest

from macroserve.core.request import Slo
from macroserve.core.scaling.load import LoadBucket, LoadReport
from macroserve.core.scheduler.config import InstanceConfig
from macroserve.core.shapes import DeviceShape, ModelShape
from macroserve.core.status import Pool
from macroserve.core.strategies import STRATEGIES
from macroserve.sim.capacity.scale_down_check import InstanceModel
from macroserve.sim.instance import FixedLatencyModel

MODEL = ModelShape(32, 4096, 32, 8, 128, 14336, 32000)
DEVICE = DeviceShape(flops_per_s=40e12, bytes_per_s=0.5e12)
BUCKET_S = 10.0


def build_latency():
    return FixedLatencyModel(MODEL, DEVICE)


def build_config(strategy="unified", **fields):
    defaults = {
        "strategy": STRATEGIES[strategy],
        "pool": Pool.LP,
        "slo": Slo(ttft_s=2.0, tpot_s=0.1),
        "num_blocks": 1024,
        "block_size": 32,
        "max_num_seqs": 64,
        "max_batch_tokens": 2048,
        "max_model_len": 2048,
    }
    return InstanceConfig(**{**defaults, **fields})


def build_lengths(seed=0, prompt=5.0, output=4.5):
    """Draw lengths like a chat's: most short, some long. `prompt` and `output` are the logarithms
    of the medians."""
    random = Random(seed)

    def one(median, most):
        return min(most, 1 + int(random.lognormvariate(median, 0.8)))

    return tuple((one(prompt, 1500), one(output, 500)) for _ in range(256))


def build_load(rates, lengths=None):
    """Return a load of `rates`, the requests per second in each bucket, the oldest first."""
    lengths = build_lengths() if lengths is None else lengths
    prompt = sum(prompt for prompt, _ in lengths) / len(lengths)
    output = sum(output for _, output in lengths) / len(lengths)
    buckets = [
        LoadBucket(
            age * BUCKET_S,
            num := round(rate * BUCKET_S),
            round(num * prompt),
            round(num * output),
        )
        for age, rate in enumerate(reversed(rates))
    ]
    return LoadReport(BUCKET_S, tuple(buckets), lengths)


def build_design(**fields):
    ratio = fields.pop("high_priority_ratio", 1 / 3)
    instance_model = InstanceModel(
        build_config(), build_latency(), ratio, fields.pop("max_cell", 6)
    )
    return replace(instance_model, config=build_config(**fields))


@pytest.fixture(scope="session")
def make_config():
    return build_config


@pytest.fixture(scope="session")
def make_latency():
    return build_latency


@pytest.fixture(scope="session")
def make_lengths():
    return build_lengths


@pytest.fixture(scope="session")
def make_load():
    return build_load


@pytest.fixture(scope="session")
def make_design():
    return build_design
