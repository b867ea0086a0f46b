"""Which causes of a failed start are the device's fault, by the texts of drivers and runtimes."""

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
    """Whether another node may well start what failed here for this cause.

    Running out of device memory is not the device's fault: it fails on every node alike.
    """
    return _DEVICE_ERRORS.search(cause) is not None
