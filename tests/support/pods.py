"""The pods of a deployment as processes with separate loopback addresses."""

import contextlib
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import psutil
from openai import OpenAI
from support.certificates import NAME, write
from support.deployment import MACROSERVE
from world.waiting import eventually

from macroserve.api.access_token import Audience, issue
from macroserve.api.handle import sign, verify
from macroserve.api.keys import KeyRing, Purpose, parse_keys
from macroserve.api.tls import AUTHORITY
from macroserve.operator.apply.certificates import certificates

SECRET, ADMIN_TOKEN = "the secret", "the admin token"
PORT, PRIVATE_PORT, HEAD_PORT = 8000, 8001, 8100
CONTROL_PORT = 8001
"""Port of an instance's control server."""


@dataclass
class Pod:
    process: subprocess.Popen[str]
    address: str
    log_path: Path
    scheme: str

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def has_logged(self, event: str, **fields: object) -> bool:
        """Return whether a line of the log has this event and these fields."""
        wanted = {"event": event, **fields}.items()
        lines = [line for line in self.log.splitlines() if line.startswith("{")]
        return any(wanted <= json.loads(line).items() for line in lines if line.endswith("}"))

    def kill(self) -> None:
        """Kill the pod with all its processes, as when its container is killed."""
        processes = [self.process, *psutil.Process(self.process.pid).children(recursive=True)]
        for process in processes:
            process.kill()
        self.process.wait(10)

    def end(self, timeout_s: float = 60) -> int:
        """Send SIGTERM; return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout_s)


class Service:
    """A stable address for one that changes, like a Service of Kubernetes."""

    def __init__(self, address: str, port: int) -> None:
        self.backend: tuple[str, int] | None = None
        self._listener = socket.create_server((address, port))
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        with client:
            try:
                with socket.create_connection(self.backend or ("", 0), timeout=2) as server:
                    server.settimeout(None)
                    back = threading.Thread(target=_copy, args=(server, client), daemon=True)
                    back.start()
                    _copy(client, server)
                    back.join(5)
            except OSError:
                return


def _copy(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        return


@dataclass
class Pods:
    """Pods as processes. `network` is the first three numbers of every address; with `tls` they
    communicate over TLS."""

    folder: Path
    network: str
    document: dict[str, Any]
    tls: bool = False
    pods: dict[str, Pod] = field(default_factory=dict)

    def __post_init__(self) -> None:
        tokens = self.folder / "tokens"
        tokens.mkdir()
        (tokens / "secret").write_text(SECRET + "\n")
        (tokens / "admin-token").write_text(ADMIN_TOKEN + "\n")
        (self.folder / "manifest.json").write_text(json.dumps(self.document))
        self.service = Service(self.at(1), HEAD_PORT)
        self.certificates: Mapping[str, str] = {}
        self._http = httpx.Client()
        if self.tls:
            self.certificates = certificates({}, NAME, datetime.now(UTC) - timedelta(days=61))
            write(self.folder / "tls", self.certificates)
            authority = str(self.folder / "tls" / AUTHORITY)
            self._http = httpx.Client(verify=ssl.create_default_context(cafile=authority))

    def at(self, number: int) -> str:
        return f"{self.network}.{number}"

    def tokens_of(self, name: str) -> Path:
        """Return a pod's copy of the tokens, which changes when a kubelet would update it."""
        return self.folder / f"tokens-{name}"

    def tls_of(self, name: str) -> Path:
        """Return a pod's copy of the certificates, like ``tokens_of``."""
        return self.folder / f"tls-{name}"

    @property
    def scheme(self) -> str:
        return "https" if self.tls else "http"

    @property
    def head_url(self) -> str:
        return f"{self.scheme}://{self.at(1)}:{HEAD_PORT}"

    def start(self, name: str, kind: str, number: int, *options: str, **env: str) -> Pod:
        """Start a pod of a kind, at the address with that number."""
        log_path = self.folder / f"{name}-{number}-{time.monotonic_ns()}.log"
        tokens = self.tokens_of(name)
        shutil.copytree(self.folder / "tokens", tokens, dirs_exist_ok=True)
        files = ["-f", str(self.folder / "manifest.json"), "--tokens", str(tokens)]
        if self.tls:
            shutil.copytree(self.folder / "tls", self.tls_of(name), dirs_exist_ok=True)
            files += ["--tls", str(self.tls_of(name))]
        process = subprocess.Popen(
            [*MACROSERVE, "run", kind, *files, *options],
            stdout=log_path.open("w"),
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "POD_IP": self.at(number), **env},
        )
        scheme = "http" if kind == "ingress" else self.scheme
        self.pods[name] = pod = Pod(process, self.at(number), log_path, scheme)
        return pod

    def start_head(self, number: int = 10) -> Pod:
        services = ",".join(f"{self.at(20 + i)}:{CONTROL_PORT}" for i in range(10))
        pod = self.start("head", "head", number, "--instances-service", services)
        self.service.backend = pod.address, HEAD_PORT
        return pod

    def start_ingress(self, index: int, *options: str) -> Pod:
        options = ("--head", self.head_url, "--listen", self.at(40 + index), *options)
        return self.start(f"ingress-{index}", "ingress", 40 + index, *options)

    def start_instance(self, index: int, pool: str = "lp", *options: str) -> Pod:
        name = f"instance-{index}"
        env = {"MACROSERVE_INSTANCE": name, "MACROSERVE_POOL": pool}
        return self.start(name, "instance", 20 + index, *options, **env)

    # -- as the operator speaks to them

    def token(self, audience: Audience) -> str:
        """Return a new token of the current secret."""
        return issue(self.key_ring(), audience, time.time(), "a nonce")

    def key_ring(self) -> KeyRing:
        secrets = parse_keys((self.folder / "tokens" / "secret").read_text())
        return KeyRing.derived(secrets, Purpose)

    def chat(self, ingress: str, num_tokens: int) -> int:
        """Return the number of tokens received from a streamed chat of ``num_tokens``."""
        url = f"http://{self.pods[ingress].address}:{PORT}/v1"
        stream = OpenAI(base_url=url, api_key="none", max_retries=0).chat.completions.create(
            model="tiny-llama",
            messages=[{"role": "user", "content": "Hello"}],
            max_tokens=num_tokens,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
        usage = list(stream)[-1].usage
        assert usage is not None
        return usage.completion_tokens

    def ask_head(self, method: str, path: str, body: Any = None, token: str = ADMIN_TOKEN) -> Any:
        """Raises httpx.HTTPError for anything but 200."""
        url = self.head_url + path
        return self._ask(method, url, json=body, headers=_bearer(token), timeout=70).json()

    def signed_handle(self, index: int) -> str:
        url = f"{self.scheme}://{self.at(20 + index)}:{CONTROL_PORT}/macroserve/identity"
        token = self.token(Audience(Purpose.CONTROL, f"instance-{index}"))
        return self._ask("GET", url, headers=_bearer(token)).json()["handle"]

    def adopt(self, index: int, cell: str = "cell-0") -> None:
        handle = self.signed_handle(index)
        self.ask_head("POST", f"/admin/v1/cells/{cell}/adopt", {"handle": handle})

    def adopt_behind(self, index: int, address: str, cell: str = "cell-0") -> None:
        """Let a cell adopt the instance with another address of its token endpoint."""
        keys = self.key_ring()
        handle = verify(self.signed_handle(index), keys, time.time())
        self.ask_head("POST", f"/admin/v1/cells/{cell}/release", {"name": handle.name})
        moved = sign(replace(handle, address=address), keys, time.time())
        self.ask_head("POST", f"/admin/v1/cells/{cell}/adopt", {"handle": moved})

    def instances(self) -> dict[str, dict[str, Any]]:
        cells = self.ask_head("GET", "/admin/v1/cells")["cells"]
        return {found["name"]: found for cell in cells for found in cell["instances"]}

    def is_ok(self, pod: Pod, path: str, port: int = PORT) -> bool:
        try:
            self._ask("GET", f"{pod.scheme}://{pod.address}:{port}{path}", timeout=5)
        except (httpx.TransportError, httpx.HTTPStatusError):
            return False
        return True

    def _ask(self, method: str, url: str, **options: Any) -> httpx.Response:
        """Raises httpx.HTTPError for anything but 200."""
        named = {"sni_hostname": NAME}
        response = self._http.request(method, url, extensions=named, **options)
        return response.raise_for_status()

    def works(self, index: int) -> bool:
        """Return whether the instance reports requests."""
        return self.is_ok(self.pods[f"instance-{index}"], "/health", CONTROL_PORT)

    def wait_for(self, condition: Callable[[], object], timeout_s: float = 180) -> Any:
        """Return the first true value of the condition."""

        def answered() -> object:
            with contextlib.suppress(httpx.HTTPError):
                return condition()

        return eventually(answered, timeout_s, describe=self._logs)

    def _logs(self) -> str:
        return "\n".join(f"{name}: {pod.log[-2000:]}" for name, pod in self.pods.items())

    def stop(self) -> None:
        for pod in self.pods.values():
            if pod.process.poll() is None:
                pod.kill()
        self.service.close()
        self._http.close()


def own_network() -> str:
    """Return the first three numbers of loopback addresses that no other deployment uses."""
    return f"127.{os.getpid() % 200 + 20}.{time.monotonic_ns() % 250}"


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@contextmanager
def running(
    folder: Path,
    document: dict[str, Any],
    ingresses: int = 2,
    instances: int = 3,
    tls: bool = False,
) -> Iterator[Pods]:
    """Run pods that are ready when entered, with all instances in one cell."""
    pods = Pods(folder, own_network(), document, tls)
    try:
        head = pods.start_head()
        for index in range(instances):
            pods.start_instance(index, "hp" if index == instances - 1 else "lp")
        for index in range(ingresses):
            pods.start_ingress(index)
        pods.wait_for(lambda: pods.is_ok(head, "/ready", HEAD_PORT))
        pods.ask_head("PUT", "/admin/v1/cells/cell-0")
        for index in range(instances):
            pods.wait_for(lambda i=index: pods.works(i))
            pods.adopt(index)
        for index in range(ingresses):
            pods.wait_for(lambda i=index: pods.is_ok(pods.pods[f"ingress-{i}"], "/ready"))
        yield pods
    finally:
        pods.stop()
