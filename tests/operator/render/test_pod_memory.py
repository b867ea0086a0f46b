"""Pods request the memory of their processes, and have limits."""

from typing import Any

import pytest
from support.rendered_pods import container, context, pods


@pytest.mark.parametrize("component", ["head", "ingress", "instance"])
@pytest.mark.parametrize("engine", ["Emulated", "vLLM"])
def test_pod_memory_and_scratch_are_limited(component: str, engine: str) -> None:
    template = {
        "spec": {
            "initContainers": [{"name": "fetch"}],
            "containers": [{"name": "engine", "resources": {"limits": None}}, {"name": "sidecar"}],
            "volumes": [{"name": "tmp", "emptyDir": {}}, {"name": "shm", "emptyDir": None}],
        }
    }
    for of in (
        context(engine={"type": engine}),
        context(engine={"type": engine}, template=template),
    ):
        spec = pods(of)[component]["spec"]
        containers = [*spec["containers"], *spec.get("initContainers", ())]
        assert all(each["resources"]["limits"]["memory"] for each in containers)
        folders = [volume["emptyDir"] for volume in spec["volumes"] if "emptyDir" in volume]
        assert len(folders) == 3
        assert all(folder["sizeLimit"] for folder in folders)


def test_shared_memory_of_a_real_engine_holds_what_its_workers_exchange() -> None:
    spec = pods(context(engine={"type": "vLLM", "tensorParallel": 4}))["instance"]["spec"]
    (shm,) = [volume["emptyDir"] for volume in spec["volumes"] if volume["name"] == "shm"]
    assert shm == {"medium": "Memory", "sizeLimit": "16Gi"}
    assert spec["containers"][0]["resources"]["limits"]["memory"] == "131328Mi"


def test_cache_in_the_memory_of_the_host_counts_as_memory_of_the_pod() -> None:
    def memory(**engine: str) -> tuple[str, str, str]:
        real: dict[str, Any] = {"engine": {"type": "vLLM", "kvCacheMemory": "8GiB", **engine}}
        pod = pods(context(**real))["instance"]
        resources = container(pod)["resources"]
        (shm,) = [each["emptyDir"] for each in pod["spec"]["volumes"] if each["name"] == "shm"]
        request, limit = (resources[kind]["memory"] for kind in ("requests", "limits"))
        return request, limit, shm["sizeLimit"]

    assert memory() == ("2Gi", f"{40 * 1024}Mi", "16Gi")
    assert memory(hostCacheMemory="64GiB") == ("66Gi", f"{104 * 1024}Mi", "80Gi")
    assert memory(hostCacheMemory="1KiB") == ("2049Mi", f"{40 * 1024 + 1}Mi", "16385Mi")


def test_pod_that_rehearses_asks_for_no_devices_and_little_memory() -> None:
    resources = {"limits": {"nvidia.com/gpu": 4}}
    template = {"spec": {"containers": [{"name": "engine", "resources": resources}]}}
    engine = {"type": "vLLM", "tensorParallel": 4, "rehearse": "H100-80GB"}
    pod = pods(context(engine=engine, template=template))["instance"]
    assert container(pod)["resources"]["limits"] == {"memory": "4Gi"}
