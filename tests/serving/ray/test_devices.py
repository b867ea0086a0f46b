"""An instance has GPUs of its own where vLLM is built for them."""

from dataclasses import replace
from importlib.metadata import PackageNotFoundError

import pytest

from macroserve.bench.quickstart import quickstart_settings
from macroserve.engine.settings import EngineSettings
from macroserve.serving.ray import devices
from macroserve.serving.ray.devices import check_free, devices_each


@pytest.fixture(scope="module")
def settings() -> EngineSettings:
    return replace(quickstart_settings(), tensor_parallel=4, pipeline_parallel=2)


@pytest.mark.parametrize(
    ("version", "emulated", "num_devices"),
    [("0.32.0", False, 8), ("0.32.0", True, 0), ("0.32.0+cpu", False, 0), (None, False, 0)],
)
def test_instance_has_a_gpu_for_each_worker_where_vllm_uses_gpus(
    settings: EngineSettings,
    monkeypatch: pytest.MonkeyPatch,
    version: str | None,
    emulated: bool,
    num_devices: int,
) -> None:
    def installed(name: str) -> str:
        if version is None:
            raise PackageNotFoundError(name)
        return version

    monkeypatch.setattr(devices, "version", installed)
    assert devices_each(replace(settings, emulated=emulated)) == num_devices


def test_instance_is_refused_where_too_few_gpus_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.available_resources", lambda: {"CPU": 1.0, "GPU": 3.0})
    monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 1.0, "GPU": 8.0})
    check_free(3)
    with pytest.raises(RuntimeError, match="needs 4 of this machine's GPUs, of which 3 of 8"):
        check_free(4)
