"""Decode attention on hidden states by Macroserve's Triton kernels."""

from typing import Any

import torch
from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding

from macroserve.engine.vllm.hybrid.metadata import DirectContext
from macroserve.engine.vllm.hybrid.projection import KvProjection
from macroserve.kernels import projection as kernels
from macroserve.kernels.attend_hidden import attend_hidden


def knows(rotary: Any) -> bool:
    """Return whether the kernels support the rotary embedding, or None: they only rotate whole
    heads whose halves are paired, by vLLM's table of cosines and sines."""
    if rotary is None:
        return True
    plain, kind = RotaryEmbedding, type(rotary)
    return (
        isinstance(rotary, plain)
        and kind.forward_native is plain.forward_native
        and kind.forward_cuda is plain.forward_cuda
        and rotary.is_neox_style
        and rotary.rotary_dim == rotary.head_size
    )


def of_kernels(project: KvProjection) -> kernels.KvProjection:
    """Return the projection in the form of the kernels."""
    value_bias, key_bias = project.value_bias, project.key_bias
    return kernels.KvProjection(
        project.key.flatten(0, 1),
        project.value.flatten(0, 1),
        project.key.shape[1],
        None if key_bias is None else key_bias.flatten(),
        None if value_bias is None else value_bias.flatten(),
        None if project.rotary is None else project.rotary.cos_sin_cache,
    )


class TritonAttention:
    """Attention of one layer on hidden states, with all heads on one device.

    With a rotary embedding, keys are computed tile by tile in registers, without one not at all.

    project: must have a rotary embedding that ``knows`` accepts.
    """

    def __init__(self, project: KvProjection, scale: float) -> None:
        self._projection = of_kernels(project)
        self._scale = scale

    def __call__(
        self, query: torch.Tensor, pages: torch.Tensor, context: DirectContext
    ) -> torch.Tensor:
        """Attend like ``AbsorbedAttention``."""
        query = query.contiguous()
        out = torch.empty_like(query)
        attend_hidden(query, pages, context.decodes, self._projection, self._scale, out)
        return out
