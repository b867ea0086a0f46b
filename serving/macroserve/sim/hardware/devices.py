"""Accelerators whose steps can be simulated."""

from dataclasses import dataclass

from macroserve.core.accelerators import PEAKS
from macroserve.core.engine_sizes import GIB
from macroserve.sim.hardware.kernels import (
    DecodeAttention,
    Kernels,
    MatrixProduct,
    PromptAttention,
    Roof,
)

AMPERE = Kernels(
    MatrixProduct(0.8823, 0.7190, 3.444e-6, 1.331, 0.4815),
    PromptAttention(0.5517, 0.3286, 1.136e-5, 1.474, 0.8537),
    DecodeAttention(0.7749, 1.432e-5, 2.067e-6, 2.771e-6),
)
"""Fitted to an A100-SXM4-80GB; median errors on held-out rows are 8.7, 8.3 and 12.5 %."""

HOPPER = Kernels(
    MatrixProduct(0.8394, 0.8377, 2.427e-6, 2.371, 0.6716),
    PromptAttention(0.5827, 0.3580, 1.149e-5, 1.253, 1.504),
    DecodeAttention(0.7785, 1.099e-5, 8.488e-7, 9.121e-8),
)
"""Fitted to an H100 SXM; median errors on held-out rows are 8.4, 7.7 and 5.5 %."""


@dataclass(frozen=True, slots=True)
class Device:
    name: str
    roof: Roof
    memory_bytes: float
    kernels: Kernels


def _device(name: str, num_multiprocessors: int, memory_gib: int, kernels: Kernels) -> Device:
    peaks = PEAKS[name]
    roof = Roof(peaks.flops_per_s, peaks.bytes_per_s, num_multiprocessors)
    return Device(name, roof, memory_gib * GIB, kernels)


A100_40GB = _device("A100-40GB", 108, 40, AMPERE)
A100_80GB = _device("A100-80GB", 108, 80, AMPERE)
A800 = _device("A800-80GB", 108, 80, AMPERE)
H100 = _device("H100-80GB", 132, 80, HOPPER)
H200 = _device("H200-141GB", 132, 140, HOPPER)
# Without measurements of Ada's kernels, the efficiencies of Ampere, whose tensor cores work alike.
L20 = _device("L20-48GB", 92, 48, AMPERE)
L40S = _device("L40S-48GB", 142, 48, AMPERE)

DEVICES = {d.name: d for d in (A100_40GB, A100_80GB, A800, H100, H200, L20, L40S)}
