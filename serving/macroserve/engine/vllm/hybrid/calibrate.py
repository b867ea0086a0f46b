"""A calibration measures Apt-Serve's rho (equation 6) on the layers of an idle engine.

Rho is the time by which a token cached as hidden state makes a decode batch longer.
"""

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import torch

from macroserve.engine.vllm.hybrid.metadata import DirectContext, Rebuilt
from macroserve.engine.vllm.hybrid.scratch_pages import Scratch
from macroserve.kernels.decodes import Decodes

NUM_REQUESTS, REQUEST_TOKENS = 4, 256
NUM_TRIALS = 20
"""Number of trials, of which the shortest counts: other work on the machine only makes a trial
longer, tenfold at times, and then the engine would hardly ever use hidden states."""


def measure_rho(layers: Sequence[Any], block_size: int) -> float:
    """Return rho in seconds per token.

    layers: vLLM's attention layers; their pages are read whatever they contain.

    The time that attention to keys and values of the same tokens would take is not subtracted.
    """
    cache = layers[0].kv_cache
    tokens = torch.arange(NUM_REQUESTS * REQUEST_TOKENS, device=cache.device)
    scratch = Scratch(len(tokens), block_size).pages(cache)

    def attend(layer: Any) -> None:
        hidden = layer.impl.hidden
        if hidden.direct is None:
            again = Rebuilt(tokens % _slots(layer), tokens, tokens)
            layer.impl.rebuild(layer, layer.kv_cache, again, scratch)
        else:
            hidden.direct(_query(layer), hidden.pages(layer.kv_cache), _context(layer))

    taken_s: list[float] = []
    for _ in range(NUM_TRIALS):
        began_s = perf_counter()
        for layer in layers:
            attend(layer)
        if cache.is_cuda:
            torch.cuda.synchronize()
        taken_s.append(perf_counter() - began_s)
    return min(taken_s) / len(tokens)


def _slots(layer: Any) -> int:
    """Return the number of hidden states that the pool holds."""
    num_pages, capacity, _ = layer.impl.hidden.pages(layer.kv_cache).shape
    return num_pages * capacity


def _query(layer: Any) -> torch.Tensor:
    cache = layer.kv_cache
    return cache.new_zeros((NUM_REQUESTS, layer.num_heads, layer.head_size))


def _context(layer: Any) -> DirectContext:
    """Return a context of requests in the pool's first pages, which repeat if they are too few."""
    num_pages, capacity, _ = layer.impl.hidden.pages(layer.kv_cache).shape
    device = layer.kv_cache.device
    pages_each = -(-REQUEST_TOKENS // capacity)
    table = torch.arange(NUM_REQUESTS * pages_each, device=device).view(NUM_REQUESTS, -1)
    table = (table % num_pages).int()
    position = torch.arange(REQUEST_TOKENS, device=device)
    slots = table[:, position // capacity].long() * capacity + position % capacity
    lens = torch.full((NUM_REQUESTS,), REQUEST_TOKENS, dtype=torch.int32, device=device)
    return DirectContext(
        lens=[REQUEST_TOKENS] * NUM_REQUESTS,
        slots=slots.flatten(),
        written=slots[:, -1],
        decodes=Decodes(table, lens, torch.arange(NUM_REQUESTS, device=device), REQUEST_TOKENS),
    )
