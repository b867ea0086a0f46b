"""Messages of drivers and runtimes tell whether a failed start is the device's fault."""

import re

_DEVICE_ERRORS = re.compile(
    r"""
    CUDA\ (driver\ )?(runtime\ )?error(?!.*\ out\ of\ memory)
    | CUDA\ initialization
    | cudaError(?!MemoryAllocation) | from\ cudaGet\w+ | from\ hipGet\w+
    | \b(CU|CUDA)_?ERROR_(?!OUT_OF_MEMORY)\w+
    | uncorrectable\ (NVLink|ECC) | \bECC\ error | \bXid\b
    | device\ lost | (GPU|device)\ has\ fallen\ off\ the\ bus | GPU\ is\ lost
    | Unable\ to\ determine\ the\ device\ handle
    | No\ (CUDA|HIP)\ (GPUs|devices)\ are\ available | no\ (CUDA-capable|ROCm-capable)\ device
    | \bNVML(Error)?(_|:|\s).*(error|lost|failed|not\ found|mismatch|unknown)
    | NVML_ERROR_\w+ | Failed\ to\ initialize\ NVML
    | \bHIP\ (runtime\ )?error(?!.*\ out\ of\ memory) | \bhipError(?!OutOfMemory)\w+
    | HSA_STATUS_ERROR(?!_OUT_OF_RESOURCES)\w*
    """,
    re.IGNORECASE | re.VERBOSE,
)


def is_device_error(cause: str) -> bool:
    """Return whether the cause is a fault of the device, so that the start may succeed on another
    node.

    Running out of device memory is no fault of the device: it fails on every node alike.
    """
    return _DEVICE_ERRORS.search(cause) is not None
