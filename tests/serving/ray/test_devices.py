"""Instances have separate GPUs if vLLM is built for GPUs."""

from dataclasses import replace
from importlib.metadata import PackageNotFoundError

import pytest

from macroserve.engine.settings import EngineSettings
from macroserve.serving.ray import devices
from macroserve.serving.ray.devices import Devices, devices_each
from macroserve_lab.bench.quickstart import quickstart_settings


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
    assert devices_each(replace(settings, rehearse="H100-80GB")) == 0


def test_instances_have_different_gpus_until_one_gives_its_own_back() -> None:
    found = Devices(["0", "1", "4"], "CUDA_VISIBLE_DEVICES")
    assert found.take("instance-0", 2) == {"CUDA_VISIBLE_DEVICES": "0,1"}
    assert found.take("instance-1", 1) == {"CUDA_VISIBLE_DEVICES": "4"}
    found.give_back("instance-0")
    found.give_back("instance-0")
    assert found.take("instance-2", 2) == {"CUDA_VISIBLE_DEVICES": "0,1"}


def test_instance_is_refused_where_too_few_gpus_are_free() -> None:
    found = Devices(["0", "1", "2", "3"], "CUDA_VISIBLE_DEVICES")
    found.take("instance-0", 1)
    with pytest.raises(RuntimeError, match="needs 4 GPUs; 3 of 4"):
        found.take("instance-1", 4)
    assert len(found.take("instance-2", 3)["CUDA_VISIBLE_DEVICES"].split(",")) == 3


def test_instance_without_gpus_keeps_its_environment() -> None:
    assert Devices([], "CUDA_VISIBLE_DEVICES").take("instance-0", 0) == {}


def test_gpus_of_the_machine_are_those_that_this_process_may_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    assert Devices.of_machine().take("instance-0", 2) == {"CUDA_VISIBLE_DEVICES": "2,5"}
