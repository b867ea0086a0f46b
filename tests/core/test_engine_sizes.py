"""An engine's sizes are configured, or vLLM's for the device."""

import pytest

from macroserve.core.engine_sizes import GIB, SMALL, EngineSizes, sizes_on
from macroserve.sim.hardware.devices import DEVICES


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ((None, None, None), EngineSizes(32, 64, 2048)),
        ((16, 8, 512), EngineSizes(16, 8, 512)),
        ((None, 4096, None), EngineSizes(32, 4096, 4096)),
        ((None, None, 48), EngineSizes(32, 48, 48)),
    ],
)
def test_small_sizes_are_those_given_and_fit_one_token_of_each_sequence(
    given: tuple[int | None, int | None, int | None], found: EngineSizes
) -> None:
    assert SMALL.given(*given) == found


@pytest.mark.parametrize(
    ("device", "found"),
    [
        ("H100-80GB", EngineSizes(16, 1024, 8192)),
        ("H200-141GB", EngineSizes(16, 1024, 8192)),
        ("A100-80GB", EngineSizes(16, 256, 2048)),
        ("L20-48GB", EngineSizes(16, 256, 2048)),
    ],
)
def test_sizes_on_a_gpu_are_vllms(device: str, found: EngineSizes) -> None:
    assert sizes_on(device, DEVICES[device].memory_bytes) == found


def test_sizes_on_the_largest_gpus_are_vllms() -> None:
    assert sizes_on("B200", 180 * GIB) == EngineSizes(16, 1024, 16384)
