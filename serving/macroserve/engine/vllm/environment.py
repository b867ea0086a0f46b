"""vLLM reads these environment variables; set them before vLLM is first imported in a process."""

import os

from macroserve.api.limits import RequestLimits

DEFAULTS = {
    # On a CPU the worker then lives in the engine's process: one process fewer, half the start.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "WARNING",
    # Whatever way a client writes the number: core.limits has the same bound.
    "VLLM_MAX_N_SEQUENCES": str(RequestLimits().n),
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_PLUGINS": "",
}


def prepare_environment() -> None:
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
