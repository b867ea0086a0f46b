"""Starts of an instance, and failed ones, from the raw status of its pod."""

import re
from datetime import datetime, timedelta

from macroserve.operator.k8s import names
from macroserve.operator.k8s.kinds import Object
from macroserve.operator.k8s.times import parsed
from macroserve.operator.observe.observation import FailedStart
from macroserve.operator.observe.problems import condition, sentence

FIRST_STATUS = timedelta(seconds=5)
"""Time below which a change of Ready is not due to the engine: a kubelet reports a new pod as not
ready within a second, and no engine loads a model faster than this."""

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
"""Messages of drivers and runtimes that blame a failed start on the device."""


def failed_start(pod: Object) -> FailedStart | None:
    """Return the failed start; None without one, after serving, and while the pod is ready."""
    status = pod.get("status", {})
    container = _engine(status)
    state = container.get("state", {})
    ended = state.get("terminated") or container.get("lastState", {}).get("terminated")
    if container.get("ready") or not ended or not ended.get("exitCode"):
        return None
    served_until = _served_until(status)
    began = parsed(ended.get("startedAt") or "")
    if served_until and began and served_until > began:
        return None
    is_up = "running" in state
    return FailedStart(
        num_ended=container.get("restartCount", 0) + (not is_up),
        served_until=served_until,
        device_error=_device_error(ended),
    )


def setup_s(pod: Object) -> float | None:
    """Return the seconds from a pod's creation until its engine's container first ran.

    None before, and after the container has ended once. The times have a resolution of a second.
    """
    container = _engine(pod.get("status", {}))
    running = container.get("state", {}).get("running") or {}
    created = parsed(pod["metadata"].get("creationTimestamp") or "")
    began = parsed(running.get("startedAt") or "")
    if created is None or began is None or container.get("restartCount", 0):
        return None
    # Clocks may differ.
    return max(0.0, (began - created).total_seconds())


def is_started(pod: Object) -> bool:
    """Return whether the engine's container runs and has generated a token, by its startup probe.

    A later probe that fails resets Ready, but not this.
    """
    container = _engine(pod.get("status", {}))
    return "running" in container.get("state", {}) and container.get("started") is True


def _engine(status: Object) -> Object:
    containers = status.get("containerStatuses") or ()
    return next((each for each in containers if each.get("name") == names.CONTAINER), {})


def _served_until(status: Object) -> datetime | None:
    """Return when the pod was last Ready, or None if it never was.

    Ready turns False when a kubelet takes the pod up, and after that only when it was True.
    """
    changed = parsed(condition(status, "Ready").get("lastTransitionTime") or "")
    taken_up = parsed(status.get("startTime") or "")
    if changed is None or taken_up is None or changed - taken_up <= FIRST_STATUS:
        return None
    return changed


def _device_error(ended: Object) -> str:
    """Return the first line with a device error in the termination message, which may be a log."""
    if ended.get("reason") == "OOMKilled":
        return ""
    lines = (ended.get("message") or "").splitlines()
    return next((sentence(line.strip()) for line in lines if is_device_error(line)), "")


def is_device_error(message: str) -> bool:
    """Return whether a message blames the device, so that a start on another node may succeed.

    Running out of device memory does not count: it fails on every node alike.
    """
    return _DEVICE_ERRORS.search(message) is not None
