"""Environment variables of vLLM, to be set before its first import in a process."""

import os

from macroserve.api.limits import RequestLimits

DEFAULTS = {
    # The worker of a CPU then runs in the engine's process, which halves the start time.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "WARNING",
    # Enforced for any spelling of the number, like the limit of api.limits.
    "VLLM_MAX_N_SEQUENCES": str(RequestLimits().n),
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_PLUGINS": "",
}


def prepare_frontend() -> None:
    """Prepare the process of an ingress, which uses no device, whatever vLLM is built for."""
    os.environ["VLLM_TARGET_DEVICE"] = "cpu"
    prepare_environment()


def prepare_environment() -> None:
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
