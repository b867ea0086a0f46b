"""``macroserve run fetch`` against a hub of this machine, by the Hub's own client."""

import hashlib
import json
import os
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType

import pytest
import yaml
from support.deployment import MACROSERVE
from support.manifests import edited

COMMIT = "a" * 40
FILES = {"config.json": b"{}", "model.safetensors": b"x" * 1000, "pytorch_model.bin": b"y" * 500}
TIMEOUT_S = 60


def oid(content: bytes) -> str:
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """Serve the repository org/m."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        path = self.path.partition("?")[0]
        name = path.rpartition("/")[2]
        if path == "/api/models/org/m/revision/main":
            self._answer(json.dumps({"id": "org/m", "sha": COMMIT}).encode())
        elif path.startswith("/api/models/org/m/tree/"):
            files = [
                {"type": "file", "path": file, "size": len(content), "oid": oid(content)}
                for file, content in FILES.items()
            ]
            self._answer(json.dumps(files).encode())
        elif path.startswith("/org/m/resolve/") and name in FILES:
            assert isinstance(self.server, Hub)
            self.server.asked[f"{self.command} {name}"] += 1
            headers = {"ETag": f'"{oid(FILES[name])}"', "X-Repo-Commit": COMMIT}
            self._answer(FILES[name], headers=headers)
        else:
            self._answer(b"", HTTPStatus.NOT_FOUND)

    def do_GET(self) -> None:
        self.do_HEAD()

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _answer(
        self,
        body: bytes,
        status: HTTPStatus = HTTPStatus.OK,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


class Hub(ThreadingHTTPServer):
    asked: Counter[str]


@pytest.fixture
def hub() -> Iterator[Hub]:
    server = Hub(("127.0.0.1", 0), Handler)
    server.asked = Counter()
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    yield server
    server.shutdown()
    server.server_close()
    serving.join()


def fetching(folder: Path, hub: Hub, name: str) -> subprocess.Popen[str]:
    """Begin to fetch as in a pod of that name, whose folder /tmp is its own."""
    own = folder / name
    own.mkdir(exist_ok=True)
    (own / "manifest.yaml").write_text(yaml.safe_dump(edited(("spec.model.source", "org/m"))))
    environment = {
        **os.environ,
        "HF_HOME": str(folder / "cache" / "huggingface"),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}",
        "TMPDIR": str(own),
    }
    return subprocess.Popen(
        [*MACROSERVE, "run", "fetch", "-f", str(own / "manifest.yaml")],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )


def end(process: subprocess.Popen[str]) -> None:
    _, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, errors


def test_model_is_fetched_once_by_pods_that_start_together_and_never_again(
    tmp_path: Path, hub: Hub
) -> None:
    for process in [fetching(tmp_path, hub, name) for name in ("a", "b")]:
        end(process)
    downloads = {what: num for what, num in hub.asked.items() if what.startswith("GET")}
    assert downloads == {"GET config.json": 1, "GET model.safetensors": 1}
    assert (tmp_path / "a" / "macroserve-fetched").exists()
    snapshot = tmp_path / "cache/huggingface/hub/models--org--m/snapshots" / COMMIT
    assert (snapshot / "model.safetensors").read_bytes() == FILES["model.safetensors"]

    hub.shutdown()
    hub.server_close()
    end(fetching(tmp_path, hub, "later"))
    assert not (tmp_path / "later" / "macroserve-fetched").exists()
