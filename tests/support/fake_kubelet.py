"""A kubelet without a node, which runs the operator's pods as processes with separate loopback
addresses and reports them ready according to their probes."""

import base64
import os
import signal
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from kubernetes.client import ApiException, CoreV1Api
from kubernetes.config import new_client_from_config
from support.deployment import MACROSERVE
from support.pods import Service

from macroserve.operator.k8s import names

EVERY_S = 0.3
TLS_FILES = ("tls.crt", "tls.key", "ca.crt")
NUMBERS = {"head": range(10, 20), "instance": range(20, 60), "ingress": range(60, 70)}


@dataclass
class _Running:
    uid: str
    process: subprocess.Popen[bytes]
    address: str
    probe: str
    """URL of the readiness probe."""
    ready: bool = False


class FakeKubelet:
    """A kubelet that runs pods as processes. `network` is the first three numbers of all
    addresses."""

    def __init__(self, kubeconfig: Path, folder: Path, namespace: str, network: str) -> None:
        self._client = CoreV1Api(new_client_from_config(str(kubeconfig)))
        self._namespace = namespace
        self._folder = folder
        self._network = network
        self._running: dict[str, _Running] = {}
        self._ending: list[subprocess.Popen[bytes]] = []
        self._head = Service(f"{network}.1", names.HEAD_PORT)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "FakeKubelet":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        for running in self._running.values():
            self._ending.append(running.process)
        for process in self._ending:
            process.kill()
            process.wait()
        self._head.close()

    def address(self, component: str) -> str:
        """Return the address of a ready pod."""
        for name, running in self._running.items():
            if f"-{component}-" in name and running.ready:
                return running.address
        raise LookupError(component)

    @property
    def schemes(self) -> set[str]:
        """Return the URL schemes with which heads and instances are probed."""
        running = list(self._running.items())
        return {each.probe.partition(":")[0] for name, each in running if "-ingress-" not in name}

    def kill(self, pod: str) -> None:
        """Kill the pod's container as if it was out of memory, and do not restart it."""
        self._running[pod].process.kill()

    def log(self, pod: str) -> str:
        return (self._folder / f"{pod}.log").read_text()

    def _run(self) -> None:
        while not self._over.wait(EVERY_S):
            pods = {
                pod.metadata.name: pod
                for pod in self._client.list_namespaced_pod(self._namespace).items
            }
            # A pod may have been recreated with the same name.
            uids = {pod.metadata.uid for pod in pods.values()}
            for name in [n for n, running in self._running.items() if running.uid not in uids]:
                ended = self._running.pop(name).process
                ended.send_signal(signal.SIGTERM)
                self._ending.append(ended)
            for name, pod in pods.items():
                try:
                    self._sync(name, pod)
                except ApiException as error:
                    # The pod, or an object that it mounts, may have been deleted meanwhile.
                    if error.status != httpx.codes.NOT_FOUND:
                        raise

    def _sync(self, name: str, pod: Any) -> None:
        if name not in self._running:
            self._start(name, pod)
        self._mounted(name, pod)
        self._probe(name)

    def _start(self, name: str, pod: Any) -> None:
        labels = pod.metadata.labels
        component, macroinstance = labels[names.COMPONENT], labels[names.MACROINSTANCE]
        taken = {running.address for running in self._running.values()}
        addresses = (f"{self._network}.{number}" for number in NUMBERS[component])
        address = next(address for address in addresses if address not in taken)
        (container,) = pod.spec.containers
        files = self._mounted(name, pod)
        replaced = {
            "/etc/macroserve": str(files),
            "$(POD_IP)": address,
            f"//{names.head(macroinstance)}:": f"//{self._network}.1:",
        }
        args = [_replaced(arg, replaced) for arg in container.args]
        args += ["--tokens", str(files / "tokens")]
        if component == "head":
            services = [f"{self._network}.{number}:8001" for number in NUMBERS["instance"]]
            args += ["--instances-service", ",".join(services)]
            self._head.backend = address, names.HEAD_PORT
        if component == "ingress":
            args += ["--listen", address]
        env = {e.name: _value(e, labels, address, self._namespace) for e in container.env}
        # This machine's caches, so that nothing is downloaded twice.
        env = {
            key: value for key, value in env.items() if not key.startswith(("HOME", "XDG", "HF"))
        }
        with (self._folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [*MACROSERVE, *args], env={**os.environ, **env}, stdout=log, stderr=log
            )
        probe = container.readiness_probe.http_get
        (port,) = [port.container_port for port in container.ports if port.name == probe.port]
        scheme = (probe.scheme or "HTTP").lower()
        url = f"{scheme}://{address}:{port}{probe.path}"
        self._running[name] = _Running(pod.metadata.uid, process, address, url)

    def _mounted(self, name: str, pod: Any) -> Path:
        """Write the pod's files in their current version."""
        labels = pod.metadata.labels
        macroinstance = labels[names.MACROINSTANCE]
        folder = self._folder / f"files-{name}"
        manifest = self._client.read_namespaced_config_map(
            names.config_map(macroinstance), self._namespace
        )
        secret = self._secret(names.secret(macroinstance))
        (volume,) = [volume.secret for volume in pod.spec.volumes if volume.name == "tokens"]
        tokens = {item.path: (secret.data or {})[item.key] for item in volume.items}
        parts = {"manifest": manifest.data or {}, "tokens": tokens}
        if labels.get(names.TLS):
            certificate = self._secret(names.tls_secret(macroinstance))
            parts["tls"] = {key: (certificate.data or {})[key] for key in TLS_FILES}
        for part, data in parts.items():
            (folder / part).mkdir(parents=True, exist_ok=True)
            for key, value in data.items():
                content = value.encode() if part == "manifest" else base64.b64decode(value)
                # Replaced atomically, as a process may be reading it.
                made = folder / part / f".{key}"
                made.write_bytes(content)
                made.replace(folder / part / key)
        return folder

    def _secret(self, name: str) -> Any:
        return self._client.read_namespaced_secret(name, self._namespace)

    def _probe(self, name: str) -> None:
        running = self._running[name]
        try:
            ready = httpx.get(running.probe, timeout=2, verify=False).status_code == httpx.codes.OK
        except httpx.HTTPError:
            ready = False
        if ready == running.ready:
            return
        running.ready = ready
        status = {
            "phase": "Running",
            "podIP": running.address,
            "conditions": [{"type": "Ready", "status": str(ready)}],
            "containerStatuses": [
                {
                    "name": names.CONTAINER,
                    "image": "",
                    "imageID": "",
                    "ready": ready,
                    "restartCount": 0,
                    "state": {"running": {}},
                }
            ],
        }
        self._client.patch_namespaced_pod_status(name, self._namespace, {"status": status})


def _replaced(text: str, replaced: dict[str, str]) -> str:
    for old, new in replaced.items():
        text = text.replace(old, new)
    return text


def _value(env: Any, labels: dict[str, str], address: str, namespace: str) -> str:
    if env.value_from is None:
        return env.value
    path = env.value_from.field_ref.field_path
    fields = {"status.podIP": address, "metadata.namespace": namespace}
    fields |= {f"metadata.labels['{label}']": value for label, value in labels.items()}
    return fields[path]
