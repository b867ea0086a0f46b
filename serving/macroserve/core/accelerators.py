"""Peak rates of accelerators by their makers' datasheets: dense, 16 bit."""

from macroserve.core.engine_sizes import GIB
from macroserve.core.shapes import DeviceShape

TFLOPS, TB_PER_S = 1e12, 1e12

PEAKS = {
    "A100-40GB": DeviceShape(312 * TFLOPS, 1.555 * TB_PER_S),
    "A100-80GB": DeviceShape(312 * TFLOPS, 2.039 * TB_PER_S),
    "A800-80GB": DeviceShape(312 * TFLOPS, 1.935 * TB_PER_S),
    "H100-80GB": DeviceShape(989 * TFLOPS, 3.35 * TB_PER_S),
    "H200-141GB": DeviceShape(989 * TFLOPS, 4.8 * TB_PER_S),
    "L20-48GB": DeviceShape(119.5 * TFLOPS, 0.864 * TB_PER_S),
    "L40S-48GB": DeviceShape(362 * TFLOPS, 0.864 * TB_PER_S),
}
"""Peaks by the model and memory of a device."""

READS_OF_MEMORY_PER_S = 25
FLOPS_PER_BYTE = 200
"""Peaks of the devices above relative to each other: 17 to 39 reads, 138 to 419 operations."""


def assumed_peaks(name: str, memory_bytes: float) -> DeviceShape:
    """Return the peaks of a device by its driver's name ("NVIDIA H100 80GB HBM3"); for an unknown
    one, typical rates for its memory."""
    words = name.upper().replace("-", " ").split()
    known = [each for each in PEAKS if each.partition("-")[0] in words]
    if not known:
        bytes_per_s = READS_OF_MEMORY_PER_S * memory_bytes
        return DeviceShape(FLOPS_PER_BYTE * bytes_per_s, bytes_per_s)

    def difference(device: str) -> float:
        gigabytes = float(device.partition("-")[2].removesuffix("GB"))
        return abs(gigabytes * GIB - memory_bytes)

    return PEAKS[min(known, key=difference)]
