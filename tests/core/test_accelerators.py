import pytest

from macroserve.core.accelerators import PEAKS, assumed_peaks
from macroserve.core.engine_sizes import GIB


@pytest.mark.parametrize(
    ("name", "memory_gib", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", 79.6, "H100-80GB"),
        ("NVIDIA H200", 139.8, "H200-141GB"),
        ("NVIDIA A100-SXM4-40GB", 39.4, "A100-40GB"),
        ("NVIDIA A100-SXM4-80GB", 79.3, "A100-80GB"),
        ("NVIDIA A100 80GB PCIe", 79.3, "A100-80GB"),
        ("NVIDIA L20", 44.5, "L20-48GB"),
        ("NVIDIA L40S", 44.5, "L40S-48GB"),
        ("NVIDIA A800-SXM4-80GB", 79.3, "A800-80GB"),
    ],
)
def test_assumed_peaks_of_a_known_device_are_its_datasheets(name, memory_gib, expected) -> None:
    assert assumed_peaks(name, memory_gib * GIB) == PEAKS[expected]


@pytest.mark.parametrize("name", ["AMD Instinct MI300X", "NVIDIA L4", "abacus", ""])
def test_assumed_peaks_of_an_unknown_device_grow_with_its_memory(name) -> None:
    peaks = assumed_peaks(name, 192 * GIB)
    assert 3e12 < peaks.bytes_per_s < 8e12 and 5e14 < peaks.flops_per_s < 2e15
    assert assumed_peaks(name, 96 * GIB).bytes_per_s == peaks.bytes_per_s / 2
