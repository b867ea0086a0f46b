"""Accelerators, with the dense 16-bit peaks of their data sheets."""

from dataclasses import dataclass

from macroserve.sim.hardware.kernels import (
    DecodeAttention,
    Kernels,
    MatrixProduct,
    PromptAttention,
    Roof,
)

GIB = 1 << 30
TB_PER_S = 1e12
TFLOPS = 1e12

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


A100_40GB = Device("A100-40GB", Roof(312 * TFLOPS, 1.555 * TB_PER_S, 108), 40 * GIB, AMPERE)
A100_80GB = Device("A100-80GB", Roof(312 * TFLOPS, 2.039 * TB_PER_S, 108), 80 * GIB, AMPERE)
A800 = Device("A800-80GB", Roof(312 * TFLOPS, 1.935 * TB_PER_S, 108), 80 * GIB, AMPERE)
H100 = Device("H100-80GB", Roof(989 * TFLOPS, 3.35 * TB_PER_S, 132), 80 * GIB, HOPPER)
H200 = Device("H200-141GB", Roof(989 * TFLOPS, 4.8 * TB_PER_S, 132), 140 * GIB, HOPPER)
# Without measurements of Ada's kernels, the efficiencies of Ampere, whose tensor cores work alike.
L20 = Device("L20-48GB", Roof(119.5 * TFLOPS, 0.864 * TB_PER_S, 92), 48 * GIB, AMPERE)
L40S = Device("L40S-48GB", Roof(362 * TFLOPS, 0.864 * TB_PER_S, 142), 48 * GIB, AMPERE)

DEVICES = {d.name: d for d in (A100_40GB, A100_80GB, A800, H100, H200, L20, L40S)}
