"""Requests to the ingresses of ``support.pods``."""

import itertools
import threading
from collections.abc import Iterator

from support.pods import PORT, Pod, Pods
from world.traffic import Traffic


class Load(Traffic):
    """Traffic to the ready ingress replicas over reused connections."""

    def __init__(self, pods: Pods, rate: float = 20, num_tokens: int = 60) -> None:
        super().__init__("", rate, num_tokens)
        self._pods = pods
        self._ready = list(self._ingresses())
        self._turn = itertools.count()
        self._over = threading.Event()
        self._watcher = threading.Thread(target=self._watch)

    def __enter__(self) -> "Load":
        self._watcher.start()
        super().__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        super().__exit__(*exc)
        self._over.set()
        self._watcher.join(120)

    def endpoint(self) -> str:
        ready = self._ready
        return f"http://{ready[next(self._turn) % len(ready)].address}:{PORT}"

    def _ingresses(self) -> Iterator[Pod]:
        return (pod for name, pod in self._pods.pods.items() if name.startswith("ingress"))

    def _watch(self) -> None:
        """Track the ready replicas, like Kubernetes' endpoints of a Service."""
        while not self._over.wait(0.5):
            self._ready = [pod for pod in self._ingresses() if self._pods.is_ok(pod, "/ready")]
