"""Benchmark of the kernels on a GPU: time, bytes and flops, relative to the device's limits.

    python -m macroserve.kernels.bench [--json FILE]

It needs only torch, Triton and a GPU. Bytes and flops are the fewest that the operation
needs, not those of the kernel; the bound is the longer of their times at the rates that
this device reaches in a plain copy and in a plain matrix product.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

import torch
from triton.testing import do_bench

from macroserve.kernels.attend_hidden import attend_hidden
from macroserve.kernels.decodes import Decodes
from macroserve.kernels.pool import hidden_view, kv_view
from macroserve.kernels.projection import KvProjection
from macroserve.kernels.rebuild_kv import rebuild_kv
from macroserve.kernels.write_hidden import write_hidden

CONTEXTS = (512, 1024, 2048, 4096)
BATCHES = (8, 32, 128)
REBUILT_TOKENS = (2048, 16384)
ELEMENT_BYTES = 2
BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Shape of one layer, by default OPT-13B's, without rotary embedding."""

    num_heads: int = 40
    head_size: int = 128

    @property
    def hidden_size(self) -> int:
        return self.num_heads * self.head_size


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates that the device reaches in plain operations."""

    bytes_per_s: float
    """Bytes read and written by a copy, per second."""
    flops_per_s: float
    """Floating-point operations of a matrix product, per second."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation on one shape."""

    name: str
    run: Callable[[], object]
    num_bytes: float
    """Fewest bytes that the operation has to move."""
    num_flops: float
    """Fewest floating-point operations that it needs."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """Measurement of one operation."""

    name: str
    time_s: float
    num_bytes: float
    num_flops: float
    bound_s: float
    """Roofline bound."""
    share: float
    """Bound relative to the measured time."""


class Layer:
    """A layer whose weights and caches are filled with noise.

    num_requests: requests that decode.
    context: tokens of each request.
    """

    def __init__(
        self,
        model: LayerShape,
        num_requests: int,
        context: int,
        device: torch.device,
        dtype: torch.dtype = torch.bfloat16,
        *,
        rotary: bool = False,
    ) -> None:
        self.model = model
        self.num_requests, self.context = num_requests, context
        size = model.hidden_size
        kind = {"device": device, "dtype": dtype}

        def weight(rows: int, columns: int) -> torch.Tensor:
            return torch.randn(rows, columns, **kind) / columns**0.5

        self.projection = KvProjection(
            key=weight(size, size),
            value=weight(size, size),
            head_size=model.head_size,
            rotary=torch.randn(context, model.head_size, **kind) if rotary else None,
        )
        blocks = -(-context // BLOCK_SIZE)
        self.pool = torch.randn(num_requests * blocks, 2 * BLOCK_SIZE * size, **kind)
        order = torch.randperm(len(self.pool), device=device).to(torch.int32)
        self.decodes = Decodes(
            order.view(num_requests, blocks),
            torch.full((num_requests,), context, dtype=torch.int32, device=device),
            torch.arange(num_requests, device=device),
            context,
        )
        self.query = torch.randn(num_requests, model.num_heads, model.head_size, **kind)
        self.out = torch.empty_like(self.query)

    @property
    def scale(self) -> float:
        return self.model.head_size**-0.5


def attending(layer: Layer) -> Iterator[Operation]:
    """Yield decode attention over hidden states."""
    model, tokens = layer.model, layer.num_requests * layer.context
    size, heads = model.hidden_size, model.num_heads
    shape = f"{layer.num_requests} x {layer.context}"
    if layer.projection.rotary is None:
        name = "absorbed"
        # Each head's query is projected, as is its mix; scores and mixes are as wide as a hidden
        # state.
        flops = 4 * layer.num_requests * size**2 + 4 * tokens * heads * size
    else:
        name = "rotary"
        flops = 2 * tokens * size**2 + 2 * tokens * heads * size
    states = hidden_view(layer.pool, size)
    yield Operation(
        f"attend_hidden {name} {shape}",
        lambda: attend_hidden(
            layer.query, states, layer.decodes, layer.projection, layer.scale, layer.out
        ),
        num_bytes=ELEMENT_BYTES * (tokens * size + 2 * size**2),
        num_flops=flops,
    )


def moving(model: LayerShape, num_tokens: int, device: torch.device) -> Iterator[Operation]:
    """Yield a write of hidden states to the pool, and a rebuild of keys and values from them."""
    layer = Layer(model, 1, num_tokens, device, rotary=True)
    size = model.hidden_size
    slots = torch.randperm(num_tokens, device=device)
    states = hidden_view(layer.pool, size)
    x = torch.randn(num_tokens, size, device=device, dtype=layer.pool.dtype)
    yield Operation(
        f"write_hidden {num_tokens}",
        lambda: write_hidden(x, states, slots),
        num_bytes=ELEMENT_BYTES * 2 * num_tokens * size,
        num_flops=0,
    )
    keys, values = kv_view(
        torch.empty_like(layer.pool), BLOCK_SIZE, model.num_heads, model.head_size
    )
    yield Operation(
        f"rebuild_kv {num_tokens}",
        lambda: rebuild_kv(states, slots, slots, layer.projection, keys, values, slots),
        num_bytes=ELEMENT_BYTES * (3 * num_tokens * size + 2 * size**2),
        num_flops=4 * num_tokens * size**2,
    )


def measured_rates(device: torch.device) -> Rates:
    source = torch.empty(2**30, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy_s = _seconds(lambda: target.copy_(source))
    size = 8192
    square = torch.randn(size, size, dtype=torch.bfloat16, device=device)
    product_s = _seconds(lambda: square @ square)
    return Rates(2 * source.numel() / copy_s, 2 * size**3 / product_s)


def measured(case: Operation, rates: Rates) -> Measurement:
    return figure(case, rates, _seconds(case.run))


def figure(case: Operation, rates: Rates, time_s: float) -> Measurement:
    bound_s = max(case.num_bytes / rates.bytes_per_s, case.num_flops / rates.flops_per_s)
    return Measurement(case.name, time_s, case.num_bytes, case.num_flops, bound_s, bound_s / time_s)


def _seconds(run: Callable[[], object]) -> float:
    """Return the median time, seconds."""
    return cast(float, do_bench(run, return_mode="median")) / 1e3


def line(found: Measurement) -> str:
    return (
        f"{found.name:36} {found.time_s * 1e6:10.1f} us {found.num_bytes / 1e6:10.1f} MB"
        f" {found.num_flops / 1e9:10.2f} GFLOP  bound {found.bound_s * 1e6:9.1f} us"
        f"  {found.share:6.1%} of it"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="File to write the figures to, as JSON.")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("there is no GPU here")
    device, model = torch.device("cuda"), LayerShape()
    rates = measured_rates(device)
    print(f"{torch.cuda.get_device_name()}: a copy moves {rates.bytes_per_s / 1e9:.0f} GB/s,")
    print(f"a product of bfloat16 matrices does {rates.flops_per_s / 1e12:.0f} TFLOP/s")
    figures: list[Measurement] = []

    def take(case: Operation) -> None:
        figures.append(measured(case, rates))
        print(line(figures[-1]), flush=True)

    for num_tokens in REBUILT_TOKENS:
        for case in moving(model, num_tokens, device):
            take(case)
    for num_requests in BATCHES:
        for context in CONTEXTS:
            for rotary in (False, True):
                layer = Layer(model, num_requests, context, device, rotary=rotary)
                for case in attending(layer):
                    take(case)
    if options.json:
        document = {
            "device": torch.cuda.get_device_name(),
            "rates": asdict(rates),
            "kernels": [asdict(found) for found in figures],
        }
        options.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
