"""Matrix products inside kernels, as exact as their arguments want."""

import torch
import triton
import triton.language as tl

MIN_ROWS = 16
"""Of a matrix that tensor cores take."""


def precision(tensor: torch.Tensor) -> str:
    """Of a kernel's products: for ``PRECISION``, below. Of float32, which tests use, in float32;
    and on a CPU all are, for Triton's interpreter multiplies no bfloat16."""
    return "ieee" if tensor.dtype == torch.float32 or tensor.device.type == "cpu" else "tf32"


@triton.jit
def product(a, b, PRECISION: tl.constexpr):
    """a @ b, in float32."""
    if PRECISION == "ieee":
        return tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
    return tl.dot(a, b)
