"""Compile every kernel for a GPU, which need not exist, and print its bytes of shared memory as
JSON.

    python compile_kernels.py COMPUTE_CAPABILITY STAGES

This needs a separate process, as Triton chooses between interpreting and compiling when it is
imported.
"""

import json
import sys
from typing import Any

import torch
import triton
from support.paged import Heads, Paged
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from macroserve.kernels import attend_hidden, rebuild_kv, tiles, write_hidden

HEADS = Heads(40, 1, 128, hidden=256)


class AbsentGpu:
    """The parts of a driver that compilation uses."""

    def __init__(self, capability: int) -> None:
        self._target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def main() -> None:
    capability, num_stages = map(int, sys.argv[1:])
    triton.runtime.driver.set_active(AbsentGpu(capability))
    for module in (rebuild_kv, tiles):
        module.stages = lambda device: num_stages
    shared: dict[str, int] = {}

    def compiled(kernel: JITFunction, grid: Any):
        def launch(*args: Any, **kwargs: Any) -> None:
            found = kernel.warmup(*args, grid=grid, **kwargs)
            assert found.asm["cubin"]
            name = kernel.fn.__name__
            shared[name] = max(shared.get(name, 0), found.metadata.shared)

        return launch

    JITFunction.__getitem__ = compiled
    for rotary in (False, True):
        paged = Paged(HEADS, torch.bfloat16, torch.device("cpu"), rotary=rotary, bias=True)
        launch_all(paged)
    print(json.dumps(shared))


def launch_all(paged: Paged) -> None:
    out = torch.empty_like(paged.query)
    keys, values = paged.keys_and_values
    attend_hidden.attend_hidden(
        paged.query, paged.hidden, paged.decodes, paged.projection, paged.scale, out
    )
    slots = torch.arange(200)
    write_hidden.write_hidden(paged.noise(200, paged.heads.hidden_size), paged.hidden, slots)
    rebuild_kv.rebuild_kv(paged.hidden, slots, slots, paged.projection, keys, values, slots)


if __name__ == "__main__":
    main()
