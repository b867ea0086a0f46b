"""kubectl, with JSON in and out."""

import json
import subprocess
from typing import Any

import yaml
from cluster import Cluster


class Kube:
    """kubectl in one namespace."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.namespace = namespace
        self._cluster = cluster

    def __call__(self, *arguments: str, input: str | None = None) -> str:
        return self._cluster.kubectl("-n", self.namespace, *arguments, input=input)

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        text = self(*("get", kind, name, "-o", "json", "--ignore-not-found"))
        return json.loads(text) if text.strip() else None

    def items(self, kind: str, labels: str = "") -> list[dict[str, Any]]:
        selector = ("-l", labels) if labels else ()
        return json.loads(self("get", kind, "-o", "json", *selector))["items"]

    def apply(self, document: dict[str, Any]) -> None:
        self("apply", "-f", "-", input=yaml.safe_dump(document))

    def refused(self, document: dict[str, Any]) -> str:
        """Return kubectl's message about a refused document."""
        try:
            self.apply(document)
        except subprocess.CalledProcessError as error:
            return error.stderr
        raise AssertionError(f"it was taken: {document}")

    def patch(self, kind: str, name: str, change: dict[str, Any]) -> None:
        self("patch", kind, name, "--type=merge", "-p", json.dumps(change))

    def service_address(self, name: str) -> str:
        """Return the address of a Service for this machine, like ``10.96.0.7:80``."""
        return self._cluster.service_address(self.namespace, name)

    def event_reasons(self, name: str) -> list[str]:
        """Return the reasons of the events about an object, oldest first."""
        events = self.items("events")
        about = [event for event in events if event["involvedObject"]["name"] == name]
        about.sort(key=lambda event: event.get("lastTimestamp") or event.get("eventTime") or "")
        return [event["reason"] for event in about]
