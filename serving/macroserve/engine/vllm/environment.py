"""vLLM reads these environment variables; set them before vLLM is first imported in a process."""

import os

from macroserve.api.limits import RequestLimits

DEFAULTS = {
    # On a CPU the worker then lives in the engine's process: one process fewer, half the start.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "WARNING",
    # The limit holds for any spelling of the number, like the one of api.limits.
    "VLLM_MAX_N_SEQUENCES": str(RequestLimits().n),
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_PLUGINS": "",
}


def prepare_frontend() -> None:
    """Prepare the process of an ingress: it has no device, even where vLLM is built for one."""
    os.environ["VLLM_TARGET_DEVICE"] = "cpu"
    prepare_environment()


def prepare_instance() -> None:
    """Prepare the process of an instance: it takes in all outputs of a step at once.

    Between chunks of them, the tokens of the first would go out in a frame of their own. An output
    costs microseconds here, as the text is made elsewhere.
    """
    os.environ.setdefault("VLLM_V1_OUTPUT_PROC_CHUNK_SIZE", str(1 << 20))
    prepare_environment()


def prepare_environment() -> None:
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
