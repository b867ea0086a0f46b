"""``spec.model.cache``: a volume that instances share, and the init container that fills it.

The init container runs in every instance's pod, so that it also fills an empty folder on a new
node, and a failure is reported by the pod. The hub's clients lock each file, so that pods that
start together fetch it once.
"""

from collections.abc import Mapping
from typing import Any

from macroserve.api.model_cache import ModelCache
from macroserve.operator.k8s import names
from macroserve.operator.k8s.kinds import Object
from macroserve.operator.render.context import RenderContext
from macroserve.operator.render.pods import MANIFEST_FILE, MANIFEST_FOLDER

FOLDER = "/var/cache/macroserve-model"
FETCH = "fetch-model"
"""Name of the init container."""
FETCH_RESOURCES = {"requests": {"cpu": "100m", "memory": "512Mi"}}
_FETCH_PARTS = ("image", "imagePullPolicy", "env", "envFrom", "securityContext", "volumeMounts")
"""Fields that the fetching container copies from the engine's, for a hub token or a proxy."""


def mount(context: RenderContext, spec: dict[str, Any]) -> None:
    """Add the cache to a pod's spec, and point its first container's environment to it."""
    cache = context.manifest.spec.model.cache
    if cache is None:
        return
    container = spec["containers"][0]
    read_only = {} if cache.writable else {"readOnly": True}
    container["volumeMounts"].append({"name": names.MODEL_CACHE, "mountPath": FOLDER, **read_only})
    spec["volumes"].append({"name": names.MODEL_CACHE, **_source(cache)})
    # Otherwise a start waits until Kubernetes has checked the owner of every file.
    spec["securityContext"] = {**spec["securityContext"], "fsGroupChangePolicy": "OnRootMismatch"}
    moved = _env(cache)
    kept = [entry for entry in container["env"] if entry["name"] not in moved]
    container["env"] = kept + [{"name": name, "value": value} for name, value in moved.items()]


def with_fetch(context: RenderContext, pod: Mapping[str, Any]) -> dict[str, Any]:
    """Return the merged pod with the init container that fetches the model.

    It runs after the template's own init containers, which may be needed to reach the hub.
    """
    cache, spec = context.manifest.spec.model.cache, pod["spec"]
    containers = spec.get("containers") or ()
    engine = next((each for each in containers if each.get("name") == names.CONTAINER), None)
    is_emulated = context.manifest.spec.engine.type == "Emulated"
    if cache is None or not cache.writable or is_emulated or engine is None:
        return dict(pod)
    fetch = {
        "name": FETCH,
        "args": ["run", "fetch", "-f", f"{MANIFEST_FOLDER}/{MANIFEST_FILE}"],
        "resources": FETCH_RESOURCES,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **{part: engine[part] for part in _FETCH_PARTS if part in engine},
    }
    return {**pod, "spec": {**spec, "initContainers": [*(spec.get("initContainers") or ()), fetch]}}


def _source(cache: ModelCache) -> Object:
    if cache.claim:
        claim = {"claimName": cache.claim}
        return {"persistentVolumeClaim": claim if cache.writable else claim | {"readOnly": True}}
    if cache.host_path:
        # DirectoryOrCreate: a kubelet reports a missing folder only in events, but the fetching
        # container reports one that it cannot write.
        return {"hostPath": {"path": cache.host_path, "type": "DirectoryOrCreate"}}
    return {"image": {"reference": cache.image, "pullPolicy": "IfNotPresent"}}


def _env(cache: ModelCache) -> dict[str, str]:
    if not cache.writable:
        # Compiled code, tokens and locks stay in the pod.
        return {"HF_HUB_CACHE": f"{FOLDER}/huggingface/hub", "HF_HUB_OFFLINE": "1"}
    return {
        "HF_HOME": f"{FOLDER}/huggingface",
        "XDG_CACHE_HOME": f"{FOLDER}/cache",
        "VLLM_CACHE_ROOT": f"{FOLDER}/vllm",
        "TRITON_CACHE_DIR": f"{FOLDER}/triton",
    }
