"""Small instances that prefill or decode."""

import pytest

from macroserve.core.request import Slo
from macroserve.core.scheduler.config import InstanceConfig
from macroserve.core.shapes import DeviceShape, ModelShape
from macroserve.core.status import Pool
from macroserve.sim.instance import FixedLatencyModel
from macroserve_lab.disaggregation.scenario import MOONCAKE

MODEL = ModelShape(32, 4096, 32, 8, 128, 14336, 32000)
DEVICE = DeviceShape(flops_per_s=40e12, bytes_per_s=0.5e12)


@pytest.fixture
def latency():
    return FixedLatencyModel(MODEL, DEVICE)


@pytest.fixture
def config():
    return InstanceConfig(
        strategy=MOONCAKE,
        pool=Pool.LP,
        slo=Slo(ttft_s=2.0, tpot_s=0.1),
        num_blocks=1024,
        block_size=32,
        max_num_seqs=64,
        max_batch_tokens=2048,
        max_model_len=2048,
    )
