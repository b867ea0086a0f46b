"""A fake Hugging Face hub in the cluster, which counts fetches."""

from pathlib import Path

from world.kube import Kube
from world.pods import is_ready
from world.waiting import eventually

REPOSITORY = "org/tiny"
"""Name of the built-in model on the hub, 84 MB."""
BYTES_PER_S = 10e6
"""Rate at which a fetch takes about eight seconds, so that it shows in the start time."""
NAME, PORT = "hub", 8080
SCRIPT = Path(__file__).with_name("hub_server.py")
START_TIMEOUT_S = 60


class HubPod:
    """The pod ``hub`` and its Service in one namespace; image: Macroserve's engine image."""

    def __init__(self, kube: Kube, image: str) -> None:
        self._kube = kube
        self._image = image

    @property
    def url(self) -> str:
        return f"http://{NAME}.{self._kube.namespace}.svc:{PORT}"

    def start(self) -> None:
        """Start the pod; return when the hub answers."""
        metadata = {"name": NAME, "labels": {"app": NAME}}
        script = {"name": "script", "mountPath": "/script"}
        container = {
            "name": NAME,
            "image": self._image,
            "imagePullPolicy": "IfNotPresent",
            "command": ["python", f"/script/{SCRIPT.name}"],
            "args": [REPOSITORY, str(PORT), str(BYTES_PER_S)],
            "volumeMounts": [script],
            "readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 1},
        }
        self._kube.apply(
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": NAME},
                "data": {SCRIPT.name: SCRIPT.read_text()},
            }
        )
        self._kube.apply(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": metadata,
                "spec": {
                    "containers": [container],
                    "volumes": [{"name": "script", "configMap": {"name": NAME}}],
                },
            }
        )
        self._kube.apply(
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": metadata,
                "spec": {"selector": {"app": NAME}, "ports": [{"port": PORT}]},
            }
        )
        eventually(self._is_ready, START_TIMEOUT_S, describe=lambda: self._kube("get", "pods"))

    def num_fetched(self, file: str) -> int:
        """Return the number of fetches of a file."""
        return self._kube("logs", NAME).splitlines().count(f"GET {file}")

    def _is_ready(self) -> bool:
        pod = self._kube.get("pod", NAME)
        return pod is not None and is_ready(pod)
