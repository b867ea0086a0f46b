"""A MacroInstance in a cluster, accessed by kubectl and HTTP."""

from typing import Any

import httpx

from world.kube import Kube
from world.waiting import eventually

READY_TIMEOUT_S = 120
CONNECT_RETRIES = 4
"""Retries after half a second, then after twice the time of the previous one."""


def emulated(name: str, **spec: Any) -> dict[str, Any]:
    """Return a MacroInstance of three emulated instances, changed by ``spec``."""
    return {
        "apiVersion": "macroserve.io/v1alpha1",
        "kind": "MacroInstance",
        "metadata": {"name": name},
        "spec": {
            "model": {"source": "tiny", "servedName": "tiny-llama", "maxModelLen": 2048},
            "engine": {"type": "Emulated", "kvCacheMemory": "8GiB"},
            "slo": {"ttft": "2s", "tpot": "100ms"},
            "instances": 3,
            "mitosis": {"lowerBound": 3, "upperBound": 6},
            "priority": {"highPriorityRatio": 0.33},
            **spec,
        },
    }


def real(name: str) -> dict[str, Any]:
    """Return a MacroInstance of one small vLLM engine."""
    return emulated(
        name,
        engine={
            "type": "vLLM",
            "dtype": "float32",
            "kvCacheMemory": "128MiB",
            "maxBatchTokens": 512,
        },
        instances=1,
        mitosis={"lowerBound": 1, "upperBound": 2},
        priority={"highPriorityRatio": 0.0},
        ingress={"replicas": 1},
    )


class Served:
    """One MacroInstance, with methods to change and observe it."""

    def __init__(self, kube: Kube, document: dict[str, Any]) -> None:
        self.kube = kube
        self.document = document
        self.name = document["metadata"]["name"]

    def apply(self, **spec: Any) -> None:
        """Apply the document with changes, which later calls keep."""
        self.document["spec"].update(spec)
        self.kube.apply(self.document)

    def scale(self, instances: int) -> None:
        self.kube("scale", "macroinstance", self.name, f"--replicas={instances}")

    @property
    def resource(self) -> dict[str, Any]:
        found = self.kube.get("macroinstance", self.name)
        assert found is not None, f"there is no MacroInstance {self.name}"
        return found

    @property
    def status(self) -> dict[str, Any]:
        return self.resource.get("status", {})

    @property
    def cells(self) -> dict[str, int]:
        """Return the number of instances by cell."""
        return {cell["name"]: cell["instances"] for cell in self.status.get("cells", [])}

    def condition(self, kind: str) -> dict[str, Any]:
        for condition in self.status.get("conditions", []):
            if condition["type"] == kind:
                return condition
        return {"type": kind, "status": "Unknown", "reason": "", "message": ""}

    def wait_for_condition(
        self, kind: str, status: str = "True", reason: str = "", timeout_s: float = READY_TIMEOUT_S
    ) -> dict[str, Any]:
        def holds() -> dict[str, Any] | None:
            condition = self.condition(kind)
            fits = condition["status"] == status and reason in ("", condition["reason"])
            return condition if fits else None

        return eventually(holds, timeout_s, describe=self.describe, every_s=0.5)

    def wait_for_instances(self, count: int, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until exactly ``count`` instances exist, all ready, and the endpoint is ready."""

        def so_many() -> bool:
            status = self.status
            pods = self.pods()
            return (
                status.get("readyInstances") == status.get("instances") == count == len(pods)
                and sum(self.cells.values()) == count
                and self.condition("Ready")["status"] == "True"
            )

        eventually(so_many, timeout_s, describe=self.describe, every_s=0.5)

    def pods(self, component: str = "instance") -> list[dict[str, Any]]:
        labels = f"macroserve.io/macroinstance={self.name},macroserve.io/component={component}"
        return self.kube.items("pods", labels)

    def all_pods(self) -> list[dict[str, Any]]:
        return self.kube.items("pods", f"macroserve.io/macroinstance={self.name}")

    def describe(self) -> str:
        """Return the state to print with a failure."""
        return "\n".join(
            (
                self.kube("describe", "macroinstance", self.name),
                self.kube("get", "pods", "-o", "wide"),
            )
        )

    @property
    def endpoint(self) -> str:
        """Return the URL of the Service for this machine."""
        return f"http://{self.kube.service_address(self.name)}"

    def complete(self, tokens: int = 4) -> dict[str, Any]:
        body = {"model": "tiny-llama", "prompt": "Hello", "max_tokens": tokens, "ignore_eos": True}
        # kube-proxy learns of a Service's ready pods a moment after the operator does.
        connecting = httpx.HTTPTransport(retries=CONNECT_RETRIES)
        with httpx.Client(transport=connecting, timeout=30) as http:
            response = http.post(self.endpoint + "/v1/completions", json=body)
        response.raise_for_status()
        return response.json()
