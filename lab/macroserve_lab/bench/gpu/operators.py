"""Replacements for the operators of vLLM's compiled library, which the archive does not contain.

``archive.py`` puts this file in place of the library (``vllm._C_stable_libtorch``). The operators
are those that a Llama in vLLM's Model Runner V2 calls or names with Triton's attention.
"""

import torch

LIBRARY = torch.library.Library("_C", "FRAGMENT")

OPERATORS = (
    "silu_and_mul(Tensor! out, Tensor input) -> ()",
    "rms_norm(Tensor! out, Tensor input, Tensor? weight, float epsilon) -> ()",
    "fused_add_rms_norm(Tensor! input, Tensor! residual, Tensor? weight, float epsilon) -> ()",
    "cutlass_scaled_mm_supports_fp8(int capability) -> bool",
    "cutlass_scaled_mm_supports_block_fp8(int capability) -> bool",
    "cutlass_group_gemm_supported(int capability) -> bool",
    "get_cuda_view_from_cpu_tensor(Tensor cpu_tensor) -> Tensor",
    "weak_ref_tensor(Tensor input) -> Tensor",
)

BITS = {1: ("|i1", torch.int8), 2: ("<i2", torch.int16), 4: ("<i4", torch.int32)}
BITS |= {8: ("<i8", torch.int64)}
"""Integers of an element's bytes, as the array interface and as torch name them."""


class Memory:
    """The memory of a GPU or pinned tensor, by its address; it keeps no tensor alive."""

    def __init__(self, tensor: torch.Tensor) -> None:
        size = tensor.element_size()
        self.__cuda_array_interface__ = {
            "data": (tensor.data_ptr(), False),
            "shape": tuple(tensor.shape),
            "strides": tuple(size * stride for stride in tensor.stride()),
            "typestr": BITS[size][0],
            "version": 3,
        }


def view(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor on the GPU over the same memory, which the caller keeps alive."""
    if tensor.numel() == 0:
        return tensor.new_empty(tensor.shape, device="cuda")
    return torch.as_tensor(Memory(tensor), device="cuda").view(tensor.dtype)


def silu_and_mul(out: torch.Tensor, x: torch.Tensor) -> None:
    gate, up = x.chunk(2, dim=-1)
    out.copy_(torch.nn.functional.silu(gate) * up)


def rms_norm(
    out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor | None, epsilon: float
) -> None:
    wide = x.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)
    out.copy_(normed.to(x.dtype) if weight is None else normed.to(x.dtype) * weight)


def fused_add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, epsilon: float
) -> None:
    residual.add_(x)
    rms_norm(x, residual, weight, epsilon)


def is_absent(capability: int) -> bool:
    """Return False, for products of eight bits that only the compiled library has."""
    return False


for operator in OPERATORS:
    LIBRARY.define(operator)
for function in (silu_and_mul, rms_norm, fused_add_rms_norm):
    LIBRARY.impl(function.__name__, function, "CompositeExplicitAutograd")
for name in ("get_cuda_view_from_cpu_tensor", "weak_ref_tensor"):
    LIBRARY.impl(name, view, "CompositeExplicitAutograd")
for name in ("scaled_mm_supports_fp8", "scaled_mm_supports_block_fp8", "group_gemm_supported"):
    LIBRARY.impl(f"cutlass_{name}", is_absent, "CompositeExplicitAutograd")
