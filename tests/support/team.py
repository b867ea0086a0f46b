"""A team that uses kubectl in its own namespace."""

import json
from itertools import count
from typing import Any

import yaml
from cluster import ApiCluster
from support.operator_process import wait_for

_NUMBERS = count()


class Team:
    """A namespace, and kubectl in it."""

    def __init__(self, cluster: ApiCluster) -> None:
        self.name = f"team-{next(_NUMBERS)}"
        self._cluster = cluster
        cluster.kubectl("create", "namespace", self.name)

    def kubectl(self, *arguments: str, input: str | None = None) -> str:
        return self._cluster.kubectl("-n", self.name, *arguments, input=input)

    def apply(self, document: dict[str, Any]) -> None:
        self.kubectl("apply", "-f", "-", input=yaml.safe_dump(document))

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        found = self.kubectl("get", kind, name, "-o", "json", "--ignore-not-found")
        return json.loads(found) if found else None

    def items(self, kind: str) -> list[dict[str, Any]]:
        selector = "app.kubernetes.io/managed-by=macroserve-operator"
        return json.loads(self.kubectl("get", kind, "-l", selector, "-o", "json"))["items"]

    def names(self, kind: str) -> set[str]:
        return {item["metadata"]["name"] for item in self.items(kind)}

    def instances(self, macroinstance: str) -> set[str]:
        prefix = f"{macroinstance}-instance-"
        return {name for name in self.names("pod") if name.startswith(prefix)}

    def condition(self, name: str, kind: str) -> dict[str, str]:
        found = self.get("mi", name) or {}
        conditions = found.get("status", {}).get("conditions", ())
        return next((c for c in conditions if c["type"] == kind), {"status": "", "reason": ""})

    def event_reasons(self, name: str) -> set[str]:
        events = json.loads(self.kubectl("get", "events", "-o", "json"))["items"]
        return {e["reason"] for e in events if e["involvedObject"]["name"] == name}

    def wait_for_instances(self, name: str, number: int, timeout_s: float = 20.0) -> None:
        what = f"{number} pods of {name}"
        wait_for(lambda: len(self.instances(name)) == number, what, timeout_s)
