"""Matrix products inside kernels, in the precision of their arguments."""

import torch
import triton
import triton.language as tl

MIN_ROWS = 16
"""Fewest rows of a matrix on tensor cores."""


def precision(tensor: torch.Tensor) -> str:
    """Return ``PRECISION`` for a kernel's products.

    It is ieee for float32, as in tests, and on CPUs, because Triton's interpreter multiplies no
    bfloat16.
    """
    return "ieee" if tensor.dtype == torch.float32 or tensor.device.type == "cpu" else "tf32"


@triton.jit
def product(a, b, PRECISION: tl.constexpr):
    """Return a @ b, in float32."""
    if PRECISION == "ieee":
        return tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
    return tl.dot(a, b)
