"""The operator's environment in memory: kubelets, a head with its cells, engines.

The operator's code runs unchanged, from a reconcile to its requests.
"""

import contextlib
import itertools
import re
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import aiohttp
import msgspec
from support.fake_api_server import OWN_GRACE_S, FakeApiServer, Raw
from support.fake_processes import Answer, Engine

from macroserve.api.access_token import AccessTokenError, Audience, check
from macroserve.api.keys import KeyRing, Purpose
from macroserve.api.messages import CellReport, HeadReport, InstanceIdentity, InstanceReport
from macroserve.core.scaling.load import LoadReport
from macroserve.core.status import CellView, InstanceStatus, Pool
from macroserve.operator.k8s import names
from macroserve.operator.k8s.cache import Store
from macroserve.operator.k8s.client import Api
from macroserve.operator.k8s.kinds import (
    DEPLOYMENT,
    MACROINSTANCE,
    POD,
    REPLICA_SET,
    ClusterKinds,
    Kind,
)
from macroserve.operator.k8s.names import Key
from macroserve.operator.options import OperatorOptions
from macroserve.operator.plan.autoscaler import Autoscaler
from macroserve.operator.reconcile.reconciler import OperatorContext, Reconciler, Requeue
from macroserve.operator.render.served_tls import PLAIN, ServedTls

NAME, NAMESPACE = "llama", "team"
KEY = Key(NAMESPACE, NAME)
HEAD_ADDRESS = "10.0.0.1"
ADMIN = Audience(Purpose.ADMIN)


def resource(instances: int = 3, **spec: Any) -> Raw:
    return {
        "apiVersion": f"{names.GROUP}/{names.VERSION}",
        "kind": names.KIND,
        "metadata": {"name": NAME, "namespace": NAMESPACE, "generation": 1, "uid": "uid-llama"},
        "spec": {
            "model": {"source": "tiny", "maxModelLen": 2048},
            "engine": {"type": "Emulated"},
            "slo": {"ttft": "2s", "tpot": "100ms"},
            "instances": instances,
            "mitosis": {"lowerBound": 2, "upperBound": 4},
            **spec,
        },
    }


@dataclass
class FakeDeployment:
    """A deployment for an operator. `cut` has the pods that the operator deleted while they had
    requests, before the end of their drain budget."""

    api: FakeApiServer = field(default_factory=FakeApiServer)
    cells: dict[str, dict[str, Engine]] = field(default_factory=dict)
    engines: dict[str, Engine] = field(default_factory=dict)
    """Engines by pod name."""
    head_answers: bool = True
    head_token: str | None = None
    """The head's admin token; None accepts any."""
    now: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    before_request: Callable[[str], None] = lambda path: None
    requests: list[str] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)
    in_round: bool = False
    served_tls: ServedTls = PLAIN
    ingress_stays: bool = False
    """Whether ingress pods of an earlier template are kept."""

    def __post_init__(self) -> None:
        self._numbers = itertools.count(1)
        self.store = Store(lambda key: None)
        self.api.on_change = self._changed
        self.world = OperatorContext(
            api=cast(Api, self.api),
            http=cast(aiohttp.ClientSession, self),
            store=self.store,
            autoscaler=Autoscaler(lambda key: None),
            options=OperatorOptions(
                "registry.local/engine:1",
                "IfNotPresent",
                "op",
                "system",
                served_tls=self.served_tls,
            ),
            kinds=ClusterKinds(),
            now=lambda: self.now,
        )

    # -- a person's side

    def apply(self, wanted: Raw) -> None:
        found = self.resource()
        if found is None:
            self.api.put(MACROINSTANCE, wanted)
        elif found["spec"] != wanted["spec"]:
            found["spec"] = wanted["spec"]
            found["metadata"]["generation"] += 1
            self.api.put(MACROINSTANCE, found)

    def switch(self, served_tls: ServedTls) -> Reconciler:
        """Return a new operator with this value of its chart, and a recreated head."""
        self.served_tls = served_tls
        options = replace(self.world.options, served_tls=served_tls)
        self.world = replace(self.world, options=options)
        self.restart_head()
        return self.reconciler()

    def delete(self) -> None:
        found = self.resource()
        assert found is not None
        found["metadata"]["deletionTimestamp"] = self.now.isoformat()
        self.api.put(MACROINSTANCE, found)

    def resource(self) -> Raw | None:
        return next(iter(self.api.all(MACROINSTANCE)), None)

    def pods(self, component: str = "instance") -> dict[str, Raw]:
        """Return pods by the instance in their labels, or else by name."""
        return {
            pod["metadata"]["labels"].get(names.INSTANCE, pod["metadata"]["name"]): pod
            for pod in self.api.all(POD)
            if pod["metadata"]["labels"][names.COMPONENT] == component
        }

    # -- the operator's side

    def reconciler(self) -> Reconciler:
        found = self.resource()
        assert found is not None
        return Reconciler(self.world, found)

    async def reconcile(self, reconciler: Reconciler) -> Requeue:
        found = self.resource()
        assert found is not None
        self.in_round = True
        try:
            return await reconciler.reconcile(found)
        finally:
            self.in_round = False

    # -- the nodes' side

    def kubelets(self) -> None:
        """Make created pods ready, and remove deleted ones."""
        deployments = {obj["metadata"]["name"]: obj for obj in self.api.all(DEPLOYMENT)}
        for name, deployment in deployments.items():
            replicas = deployment["spec"]["replicas"]
            status = dict.fromkeys(("replicas", "updatedReplicas", "readyReplicas"), replicas)
            if deployment.get("status") != status:
                self.api.put(DEPLOYMENT, {**deployment, "status": status})
            component = deployment["metadata"]["labels"][names.COMPONENT]
            template = deployment["spec"]["template"]["metadata"]
            for pod in self.pods(component).values():
                is_of_template = pod["metadata"]["annotations"] == template["annotations"]
                if not (is_of_template or (component == "ingress" and self.ingress_stays)):
                    self.end(pod)
            if not self.pods(component):
                owner = {"labels": template["labels"], **_owned_by(deployment)}
                replica_set = self.api.put(
                    REPLICA_SET, {"metadata": {"name": name, "namespace": NAMESPACE, **owner}}
                )
                metadata = {"name": f"{name}-0", "namespace": NAMESPACE, **template}
                metadata |= _owned_by(replica_set)
                self.api.put(POD, {"metadata": metadata, "spec": {"containers": []}})
        for component in ("head", "ingress", "instance"):
            for pod in self.pods(component).values():
                if "lost" in pod["metadata"]["labels"]:
                    continue
                if "deletionTimestamp" in pod["metadata"] or (
                    component != "instance" and f"{NAME}-{component}" not in deployments
                ):
                    self.end(pod)
                elif not pod.get("status"):
                    self._start(pod, component)

    def _start(self, pod: Raw, component: str) -> None:
        name, labels = pod["metadata"]["name"], pod["metadata"]["labels"]
        address = HEAD_ADDRESS
        if component == "instance":
            number = next(self._numbers)
            address = f"10.1.{number // 250}.{number % 250 + 1}"
            pool = Pool(labels[names.POOL])
            tls = labels.get(names.TLS) == "true"
            self.engines[name] = Engine(labels[names.INSTANCE], address, pool, tls=tls)
        self._set_status(pod, address, ready=True)

    def _set_status(self, pod: Raw, address: str, ready: bool, phase: str = "Running") -> None:
        if "lost" in pod["metadata"]["labels"]:
            return
        conditions = [{"type": "Ready", "status": str(ready)}]
        status = {"phase": phase, "podIP": address, "conditions": conditions}
        self.api.put(POD, {**pod, "status": status})

    def end(self, pod: Raw) -> None:
        """Remove the pod, whose processes have ended."""
        self._forget(pod["metadata"]["name"])
        self.api.remove(POD, pod)

    def crash(self, pod: Raw) -> None:
        """End the pod's container; ``restarted`` starts the next one."""
        if engine := self._forget(pod["metadata"]["name"]):
            self._set_status(pod, engine.address, ready=False)

    def fail(self, pod: Raw) -> None:
        """Fail the pod as an eviction by its node does."""
        if engine := self._forget(pod["metadata"]["name"]):
            self._set_status(pod, engine.address, ready=False, phase="Failed")

    def lose(self, pod: Raw, kubelet_only: bool) -> None:
        """Lose the pod's node: the control plane deletes the pod, and its kubelet never confirms
        it."""
        if "status" not in pod or "deletionTimestamp" in pod["metadata"]:
            return
        name, labels = pod["metadata"]["name"], {"lost": "yes", **pod["metadata"]["labels"]}
        if not kubelet_only:
            self._forget(name)
        pod["metadata"] |= {"labels": labels, "deletionTimestamp": self.now.isoformat()}
        pod["status"] |= {
            "conditions": [{"type": "Ready", "status": "False"}],
            "containerStatuses": [{"name": "engine", "ready": True, "restartCount": 0}],
        }
        self.api.put(POD, pod)

    def restarted(self) -> None:
        for pod in self.pods().values():
            status, name = pod.get("status", {}), pod["metadata"]["name"]
            is_there = "lost" not in pod["metadata"]["labels"]
            if is_there and status.get("phase") == "Running" and name not in self.engines:
                labels = pod["metadata"]["labels"]
                pool, address = Pool(labels[names.POOL]), status["podIP"]
                tls = labels.get(names.TLS) == "true"
                self.engines[name] = Engine(labels[names.INSTANCE], address, pool, tls=tls)
                self._set_status(pod, address, ready=True)

    def _forget(self, pod: str) -> Engine | None:
        engine = self.engines.pop(pod, None)
        for cell in self.cells.values():
            for name in [name for name, held in cell.items() if held is engine]:
                del cell[name]
        return engine

    def restart_head(self) -> None:
        """Restart the head, which forgets its cells; the instances remember them."""
        self.cells.clear()

    def _changed(self, kind: Kind, obj: Raw, gone: bool) -> None:
        (self.store.drop if gone else self.store.put)(kind, obj)
        metadata = obj["metadata"]
        if kind is not POD or gone or not self.in_round or "deletionTimestamp" not in metadata:
            return
        engine = self.engines.get(metadata["name"])
        since = metadata.get("annotations", {}).get(names.DRAINING_SINCE)
        budget = float(metadata.get("annotations", {}).get(names.DRAIN_BUDGET, 0))
        waited = self.now - datetime.fromisoformat(since) if since else timedelta(0)
        # With its full grace period, an instance finishes its requests.
        grace_s = metadata.get("deletionGracePeriodSeconds", OWN_GRACE_S)
        is_hasty = grace_s < OWN_GRACE_S
        if engine and engine.tokens and is_hasty and not waited > timedelta(seconds=budget):
            self.cut.append(metadata["name"])

    # -- HTTP, as of aiohttp

    @contextlib.asynccontextmanager
    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        data: bytes | None = None,
        **options: Any,
    ) -> AsyncIterator[Answer]:
        found = re.fullmatch(r"(https?)://([^:]+):(\d+)(/.*)", url)
        assert found, url
        scheme, address, port, path = found.groups()
        if scheme == "https":
            assert options["server_hostname"] == f"{NAME}.{NAMESPACE}.macroserve.internal"
            assert options["ssl"].verify_mode is ssl.CERT_REQUIRED
        self.requests.append(f"{method} {path}")
        self.before_request(path)
        if int(port) == names.HEAD_PORT:
            is_right = (scheme, address) == (self.served_tls.scheme, HEAD_ADDRESS)
            if not self.head_answers or not is_right:
                raise aiohttp.ClientConnectionError("nobody is there")
            if self.head_token and not _opens(headers, self.head_token):
                yield Answer(401, b"the admin token is wrong")
                return
            yield self._answer_as_head(method, path, msgspec.json.decode(data or b"{}"))
            return
        engine = next((e for e in self.engines.values() if e.address == address), None)
        if engine is None or engine.tls != (scheme == "https"):
            raise aiohttp.ClientConnectionError("nobody is there")
        yield _ok(InstanceIdentity(engine.name, engine.address, engine.cell))

    def _answer_as_head(self, method: str, path: str, order: Mapping[str, Any]) -> Answer:
        match (method, *path.removeprefix("/admin/v1/").split("/")):
            case "GET", "cells":
                reports = tuple(self._report(cell) for cell in self.cells)
                return _ok(HeadReport(reports, frozenset(self.cells)))
            case "GET", "load":
                return _ok(LoadReport(bucket_s=60.0))
            case "PUT", "cells", cell:
                found = (e for e in self.engines.values() if e.tls is self.served_tls.enabled)
                named = {e.name: e for e in found if e.cell == cell}
                self.cells.setdefault(cell, named)
            case "DELETE", "cells", cell:
                assert not self.cells.get(cell), "a cell with members was ended"
                self.cells.pop(cell, None)
            case "POST", "migrate":
                source, target = self.cells[order["source"]], self.cells[order["target"]]
                engine = source.pop(order["instance"], None)
                if engine is None:
                    return Answer(404, b"it is not there")
                target[engine.name], engine.cell = engine, order["target"]
            case "POST", "cells", cell, verb:
                return self._order(cell, verb, order)
            case _:
                raise AssertionError(path)
        return _ok({})

    def _order(self, cell: str, verb: str, order: Mapping[str, Any]) -> Answer:
        members = self.cells.get(cell)
        if members is None:
            return Answer(404, b"there is no such cell")
        if verb == "adopt":
            engine = next(e for e in self.engines.values() if e.address == order["handle"])
            if engine.tls and not self.served_tls.enabled:
                return Answer(504, b"the instance sent no status")
            members[engine.name], engine.cell = engine, cell
            return _ok({})
        engine = members.get(order["name"])
        if engine is None:
            return Answer(404, b"it is not there")
        match verb:
            case "release":
                del members[engine.name]
            case "pool":
                engine.pool = Pool(order["pool"])
            case "drain":
                engine.draining = order["draining"]
            case _:
                raise AssertionError(verb)
        return _ok({})

    def _report(self, cell: str) -> CellReport:
        members = self.cells[cell]
        high = tuple(name for name, engine in members.items() if engine.pool is Pool.HP)
        reports = tuple(
            InstanceReport(
                name=name,
                pool=engine.pool,
                address=engine.url,
                status=InstanceStatus(
                    seq=1, num_running=int(engine.tokens > 0), remaining_tokens=engine.tokens
                ),
                age_s=0.1,
                in_flight=0,
                draining=engine.draining,
            )
            for name, engine in members.items()
        )
        working = sum(engine.tokens > 0 for engine in members.values())
        return CellReport(CellView(cell, tuple(members), high, num_running=working), reports)


def _opens(headers: Mapping[str, str], admin_token: str) -> bool:
    ring = KeyRing.derived([admin_token], [Purpose.ADMIN])
    try:
        check(headers["Authorization"].removeprefix("Bearer "), ring, ADMIN, time.time())
    except AccessTokenError:
        return False
    return True


def _ok(body: object) -> Answer:
    return Answer(200, msgspec.json.encode(body))


def _owned_by(owner: Raw) -> Raw:
    return {"ownerReferences": [{"uid": owner["metadata"]["uid"], "controller": True}]}
