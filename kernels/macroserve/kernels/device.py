"""Kernels depend on properties of their device."""

import torch

LARGE_SHARED_BYTES = 128 * 1024


def stages(device: torch.device) -> int:
    """Return the number of stages of a pipelined loop, as many as the shared memory of a block
    holds.

    A block has 99 KiB on L20 and L40S, 163 on A100 and 227 on H100.
    """
    if device.type != "cuda":
        return 2
    properties = torch.cuda.get_device_properties(device)
    return 3 if properties.shared_memory_per_block_optin >= LARGE_SHARED_BYTES else 2
