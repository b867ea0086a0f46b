"""Device properties on which kernels depend."""

import torch

LARGE_SHARED_BYTES = 128 * 1024


def stages(device: torch.device) -> int:
    """Return the number of pipelined loop stages for which a block has shared memory.

    A block has 99 KiB on L20 and L40S, 163 on A100 and 227 on H100.
    """
    if device.type != "cuda":
        return 2
    properties = torch.cuda.get_device_properties(device)
    return 3 if properties.shared_memory_per_block_optin >= LARGE_SHARED_BYTES else 2
