"""The duration of a pod's start, and the failure of its last one, from its raw status."""

from datetime import UTC, datetime
from typing import Any

import pytest

from macroserve.operator.observe.observation import FailedStart
from macroserve.operator.observe.problems import MAX_CAUSE_CHARS
from macroserve.operator.observe.starts import failed_start, is_device_error, is_started, setup_s

CUDA = "CUDA error: uncorrectable ECC error encountered"
TAKEN_UP = "2026-01-01T00:00:00Z"
LATER = datetime(2026, 1, 1, 0, 10, tzinfo=UTC)


def ended(began: str = "2026-01-01T00:00:03Z", **differs: Any) -> dict[str, Any]:
    return {"exitCode": 1, "reason": "Error", "message": CUDA, "startedAt": began, **differs}


def pod(
    state: dict[str, Any],
    last: dict[str, Any] | None = None,
    restarts: int = 0,
    ready_changed: str = TAKEN_UP,
    **container: Any,
) -> dict[str, Any]:
    engine = {
        "name": "engine",
        "ready": False,
        "restartCount": restarts,
        "state": state,
        "lastState": {"terminated": last} if last else {},
        **container,
    }
    sidecar = {"name": "proxy", "ready": False, "restartCount": 9, "state": {"terminated": ended()}}
    condition = {"type": "Ready", "status": "False", "lastTransitionTime": ready_changed}
    return {
        "metadata": {"name": "llama-instance-0"},
        "status": {
            "startTime": TAKEN_UP,
            "conditions": [condition],
            "containerStatuses": [sidecar, engine],
        },
    }


WAITING = {"waiting": {"reason": "CrashLoopBackOff"}}
RUNNING = {"running": {}}
SERVED = "2026-01-01T00:10:00Z"
BEFORE, AFTER = "2026-01-01T00:09:00Z", "2026-01-01T00:10:01Z"
TABLE = {
    "on its way": (pod({"waiting": {"reason": "ContainerCreating"}}), None),
    "starting for the first time": (pod(RUNNING), None),
    "just ended": (pod({"terminated": ended()}), FailedStart(1, None, f"{CUDA}.")),
    "waits for its third start": (pod(WAITING, ended(), 1), FailedStart(2, None, f"{CUDA}.")),
    "in its third start": (pod(RUNNING, ended(), 2), FailedStart(2, None, f"{CUDA}.")),
    "serves after failures": (pod(RUNNING, ended(), 2, ready=True), None),
    "crashed while it served": (pod(WAITING, ended(BEFORE), 0, SERVED), None),
    "failed a start after it served": (
        pod(WAITING, ended(AFTER), 1, SERVED),
        FailedStart(2, LATER, f"{CUDA}."),
    ),
    "not ready for a moment, after failures": (pod(RUNNING, ended(), 1, SERVED), None),
    "failed for another cause": (
        pod(WAITING, ended(message="the model folder is empty"), 2),
        FailedStart(3, None, ""),
    ),
    "out of the device's memory": (
        pod(WAITING, ended(message="CUDA error: out of memory"), 2),
        FailedStart(3, None, ""),
    ),
    "out of the host's memory": (
        pod(WAITING, ended(reason="OOMKilled", exitCode=137), 2),
        FailedStart(3, None, ""),
    ),
    "no message": (pod(WAITING, ended(message=None), 2), FailedStart(3, None, "")),
    "ended without an error": (pod(WAITING, ended(exitCode=0, reason="Completed"), 2), None),
    "the end of a log": (
        pod(WAITING, ended(message=f"loading weights\n  {CUDA}\nframe #0: c10::Error\n"), 0),
        FailedStart(1, None, f"{CUDA}."),
    ),
}


@pytest.mark.parametrize(("raw", "expected"), TABLE.values(), ids=TABLE.keys())
def test_failed_start_of_a_pod_has_its_cause(
    raw: dict[str, Any], expected: FailedStart | None
) -> None:
    assert failed_start(raw) == expected


@pytest.mark.parametrize("raw", [{"metadata": {}}, {"metadata": {}, "status": {"startTime": None}}])
def test_pod_without_a_status_has_failed_no_start(raw: dict[str, Any]) -> None:
    assert failed_start(raw) is None


def test_long_cause_is_cut() -> None:
    found = failed_start(pod(WAITING, ended(message=f"{CUDA} {'x' * 4000}"), 2))
    assert found
    assert len(found.device_error) < MAX_CAUSE_CHARS + 10


CREATED = "2026-01-01T00:00:00Z"
BEGAN = {"running": {"startedAt": "2026-01-01T00:00:42Z"}}
SETUPS: dict[str, tuple[dict[str, Any], str, float | None]] = {
    "runs": (pod(BEGAN), CREATED, 42.0),
    "is ready": (pod(BEGAN, ready=True), CREATED, 42.0),
    "runs by a clock that is late": (pod(BEGAN), "2026-01-01T00:01:00Z", 0.0),
    "is on its way": (pod({"waiting": {"reason": "PodInitializing"}}), CREATED, None),
    "has no times": (pod(RUNNING), CREATED, None),
    "was restarted": (pod(BEGAN, ended(), 1), CREATED, None),
    "is not stored yet": (pod(BEGAN), "", None),
}


@pytest.mark.parametrize("case", SETUPS)
def test_setup_of_a_pod_that_is_as_told(case: str) -> None:
    found, created, expected = SETUPS[case]
    metadata = {"name": "llama-instance-0"} | ({"creationTimestamp": created} if created else {})
    assert setup_s({**found, "metadata": metadata}) == expected


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        (pod(RUNNING, started=True, ready=True), True),
        (pod(RUNNING, started=True), True),
        (pod(RUNNING, started=False), False),
        (pod(RUNNING), False),
        (pod(WAITING, ended(), 1, started=True), False),
    ],
)
def test_pod_that_misses_a_probe_has_started_until_its_container_ends(
    of: dict[str, Any], expected: bool
) -> None:
    assert is_started(of) is expected


@pytest.mark.parametrize(
    ("cause", "expected"),
    [
        ("RuntimeError: CUDA error: unspecified launch failure", True),
        ("torch.AcceleratorError: CUDA error: an illegal memory access was encountered", True),
        ("CUDA error: uncorrectable ECC error encountered", True),
        ("RuntimeError: CUDA driver error: unknown error", True),
        ("RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802", True),
        ("CUDA initialization: CUDA driver initialization failed", True),
        ("cudaErrorDevicesUnavailable: busy or unavailable", True),
        ("CUDA_ERROR_SYSTEM_NOT_READY", True),
        ("RuntimeError: No CUDA GPUs are available", True),
        ("no CUDA-capable device is detected", True),
        ("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.", True),
        ("pynvml.NVMLError_GpuIsLost: GPU is lost", True),
        ("NVMLError_Unknown: Unknown Error", True),
        ("Failed to initialize NVML: Driver/library version mismatch", True),
        ("RuntimeError: HIP error: hipErrorNoBinaryForGpu", True),
        ("RuntimeError: No HIP GPUs are available", True),
        ("HSA_STATUS_ERROR_EXCEPTION: An HSAIL operation resulted in a hardware exception", True),
        ("device lost", True),
        ("its engine's process was killed (SIGKILL)", False),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB", False),
        ("RuntimeError: CUDA error: out of memory", False),
        ("RuntimeError: HIP out of memory", False),
        ("CUDA_ERROR_OUT_OF_MEMORY", False),
        ("cudaErrorMemoryAllocation", False),
        ("the KV cache holds 512 tokens of the emulated model", False),
        ("ValueError: 'device' must be one of cpu, cuda", False),
        ("safetensors_rust.SafetensorError: file not fully covered", False),
        ("ModuleNotFoundError: No module named 'pynvml'", False),
        ("", False),
    ],
)
def test_device_error_is_recognized_by_its_cause(cause: str, expected: bool) -> None:
    assert is_device_error(cause) is expected
