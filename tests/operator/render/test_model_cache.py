"""The instances' pods share a cache, and an init container fills it."""

from typing import Any

import pytest
from support.rendered_pods import container, context, pods

from macroserve.operator.render.context import RenderContext

FOLDER = "/var/cache/macroserve-model"
TINY = {"source": "tiny", "maxModelLen": 2048}


def cached(cache: dict[str, Any] | None = None, engine: str = "vLLM", **more: Any) -> RenderContext:
    model = {**TINY, "cache": cache} if cache else TINY
    return context(model=model, engine={"type": engine}, **more)


def instance(of: RenderContext) -> dict[str, Any]:
    return pods(of)["instance"]


def volume(pod: dict[str, Any]) -> dict[str, Any] | None:
    return next((each for each in pod["spec"]["volumes"] if each["name"] == "model-cache"), None)


def mount(of: dict[str, Any]) -> dict[str, Any]:
    (found,) = [each for each in of["volumeMounts"] if each["mountPath"] == FOLDER]
    return found


def env(of: dict[str, Any]) -> dict[str, Any]:
    names = [entry["name"] for entry in of["env"]]
    assert len(names) == len(set(names))
    return {entry["name"]: entry.get("value") for entry in of["env"]}


HOST = {"path": "/var/lib/models", "type": "DirectoryOrCreate"}
SOURCES: dict[str, tuple[dict[str, Any], dict[str, Any], bool]] = {
    "claim": ({"claim": "models"}, {"persistentVolumeClaim": {"claimName": "models"}}, True),
    "claim that is only read": (
        {"claim": "models", "readOnly": True},
        {"persistentVolumeClaim": {"claimName": "models", "readOnly": True}},
        False,
    ),
    "folder of the node": ({"hostPath": "/var/lib/models"}, {"hostPath": HOST}, True),
    "folder that is only read": (
        {"hostPath": "/var/lib/models", "readOnly": True},
        {"hostPath": HOST},
        False,
    ),
    "image": (
        {"image": "r/models:1"},
        {"image": {"reference": "r/models:1", "pullPolicy": "IfNotPresent"}},
        False,
    ),
}


@pytest.mark.parametrize("case", SOURCES)
def test_cache_is_a_volume_of_the_instances(case: str) -> None:
    cache, source, writable = SOURCES[case]
    pod = instance(cached(cache))
    assert volume(pod) == {"name": "model-cache", **source}
    assert mount(container(pod)).get("readOnly", False) is not writable
    assert ("initContainers" in pod["spec"]) is writable
    assert pod["spec"]["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"


@pytest.mark.parametrize("case", SOURCES)
def test_ingress_reads_a_cache_that_no_pod_writes(case: str) -> None:
    cache, source, writable = SOURCES[case]
    pod = pods(cached(cache))["ingress"]
    assert volume(pod) == (None if writable else {"name": "model-cache", **source})
    assert (env(container(pod)).get("HF_HUB_OFFLINE") == "1") is not writable


def test_head_has_no_cache() -> None:
    assert volume(pods(cached({"image": "r/models:1"}))["head"]) is None


def test_cache_that_is_written_has_weights_and_compiled_code() -> None:
    found = env(container(instance(cached({"claim": "models"}))))
    assert {name: value for name, value in found.items() if FOLDER in str(value)} == {
        "HF_HOME": f"{FOLDER}/huggingface",
        "XDG_CACHE_HOME": f"{FOLDER}/cache",
        "VLLM_CACHE_ROOT": f"{FOLDER}/vllm",
        "TRITON_CACHE_DIR": f"{FOLDER}/triton",
    }
    assert "HF_HUB_OFFLINE" not in found


def test_cache_that_is_only_read_has_weights_alone() -> None:
    found = env(container(instance(cached({"image": "r/models:1"}))))
    moved = {name: value for name, value in found.items() if FOLDER in str(value)}
    assert moved == {"HF_HUB_CACHE": f"{FOLDER}/huggingface/hub"}
    assert found["HF_HUB_OFFLINE"] == "1"
    assert found["HF_HOME"].startswith("/var/cache/macroserve/")


TEMPLATE = {
    "spec": {
        "initContainers": [{"name": "proxy", "image": "proxy:1", "restartPolicy": "Always"}],
        "containers": [
            {
                "name": "engine",
                "image": "own:1",
                "command": ["nsys"],
                "env": [{"name": "HF_ENDPOINT", "value": "http://hub"}],
                "envFrom": [{"secretRef": {"name": "hf-token"}}],
                "resources": {"limits": {"nvidia.com/gpu": 1}},
            }
        ],
    }
}


def test_container_that_fetches_has_what_the_engine_has_of_the_hub() -> None:
    pod = instance(cached({"claim": "models"}, template=TEMPLATE))
    engine, (proxy, fetch) = container(pod), pod["spec"]["initContainers"]
    assert proxy["name"] == "proxy"
    assert fetch["name"] == "fetch-model"
    manifest = "/etc/macroserve/manifest/macroinstance.json"
    assert fetch["args"] == ["run", "fetch", "-f", manifest]
    assert fetch["image"] == "own:1"
    assert env(fetch)["HF_ENDPOINT"] == "http://hub"
    for part in ("env", "envFrom", "volumeMounts", "securityContext", "imagePullPolicy"):
        assert fetch[part] == engine[part]
    assert "command" not in fetch
    assert "nvidia.com/gpu" not in str(fetch["resources"])
    assert fetch["resources"]["limits"] == {"memory": "4Gi"}


def test_emulated_engine_fetches_nothing() -> None:
    pod = instance(cached({"claim": "models"}, engine="Emulated"))
    assert volume(pod) is not None
    assert "initContainers" not in pod["spec"]


def test_pod_without_a_cache_is_as_before() -> None:
    pod = instance(cached())
    assert volume(pod) is None
    assert "fsGroupChangePolicy" not in pod["spec"]["securityContext"]
    assert env(container(pod))["HF_HOME"] == "/var/cache/macroserve/huggingface"


def test_pods_are_replaced_when_the_cache_changes() -> None:
    revisions = {
        instance(cached(cache))["metadata"]["annotations"]["macroserve.io/revision"]
        for cache in (None, {"claim": "a"}, {"claim": "b"}, {"claim": "a", "readOnly": True})
    }
    assert len(revisions) == 4
