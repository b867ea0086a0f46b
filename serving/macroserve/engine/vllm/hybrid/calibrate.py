"""Measurement of Apt-Serve's rho (equation 6) on the layers of an idle engine: the additional time
of a decode batch per token cached as a hidden state."""

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import torch

from macroserve.engine.vllm.hybrid.metadata import DirectContext, Rebuilt
from macroserve.engine.vllm.hybrid.scratch_pages import Scratch
from macroserve.kernels.decodes import Decodes

NUM_REQUESTS = 16
REQUEST_TOKENS = {"cpu": (32, 128), "cuda": (64, 4096)}
"""Tokens of each request in the two timed batches, by type of device. On a GPU the larger batch
takes several times as long as its launches."""
NUM_TRIALS = 20
"""The shortest trial counts: other work on the machine makes some ten times as long, and with such
a rho the engine would hardly ever use hidden states."""


def measure_rho(layers: Sequence[Any], scratch: Scratch, max_model_len: int) -> float:
    """Return rho in seconds per token: the slope between two batches, which excludes constant times
    like kernel launches. The time of attention to keys and values of the same tokens is not
    subtracted.

    layers: vLLM's attention layers, with pages of any content.
    max_model_len: tokens of the longest request, the positions of a rotary embedding.
    """
    small, large = REQUEST_TOKENS[layers[0].kv_cache.device.type]
    large = min(large, max_model_len)
    small = min(small, large // 2)
    taken_s = _shortest_s(layers, large, scratch) - _shortest_s(layers, small, scratch)
    return max(taken_s, 0.0) / (NUM_REQUESTS * (large - small))


def _shortest_s(layers: Sequence[Any], request_tokens: int, scratch: Scratch) -> float:
    """Return the shortest time of all layers for a batch of hidden states, seconds."""
    cache = layers[0].kv_cache
    tokens = torch.arange(NUM_REQUESTS * request_tokens, device=cache.device)
    query, context = _query(layers[0]), _context(layers[0], request_tokens)
    pages, room = scratch.pages(cache), scratch.num_tokens

    def attend(layer: Any) -> None:
        hidden = layer.impl.hidden
        if hidden.direct is None:
            for share in tokens.split(room):
                again = Rebuilt(share % _slots(layer), share % request_tokens, share % room)
                layer.impl.rebuild(layer, layer.kv_cache, again, pages)
        else:
            hidden.direct(query, hidden.pages(layer.kv_cache), context)

    taken_s: list[float] = []
    for _ in range(NUM_TRIALS):
        began_s = perf_counter()
        for layer in layers:
            attend(layer)
        if cache.is_cuda:
            torch.cuda.synchronize()
        taken_s.append(perf_counter() - began_s)
    return min(taken_s)


def _slots(layer: Any) -> int:
    """Return the number of hidden states in the pool."""
    num_pages, capacity, _ = layer.impl.hidden.pages(layer.kv_cache).shape
    return num_pages * capacity


def _query(layer: Any) -> torch.Tensor:
    cache = layer.kv_cache
    return cache.new_zeros((NUM_REQUESTS, layer.num_heads, layer.head_size))


def _context(layer: Any, request_tokens: int) -> DirectContext:
    """Return a context of requests in the pool's first pages, reused if they are too few."""
    num_pages, capacity, _ = layer.impl.hidden.pages(layer.kv_cache).shape
    device = layer.kv_cache.device
    pages_each = -(-request_tokens // capacity)
    table = torch.arange(NUM_REQUESTS * pages_each, device=device).view(NUM_REQUESTS, -1)
    table = (table % num_pages).int()
    position = torch.arange(request_tokens, device=device)
    slots = table[:, position // capacity].long() * capacity + position % capacity
    lens = torch.full((NUM_REQUESTS,), request_tokens, dtype=torch.int32, device=device)
    return DirectContext(
        lens=[request_tokens] * NUM_REQUESTS,
        slots=slots.flatten(),
        written=slots[:, -1],
        decodes=Decodes(table, lens, torch.arange(NUM_REQUESTS, device=device), request_tokens),
    )
