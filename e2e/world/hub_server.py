"""A fake Hugging Face hub of one repository, for Hugging Face's client.

It only needs Python, so that a pod can run it as a script: ``python hub_server.py REPOSITORY PORT
BYTES_PER_S`` serves the built-in model, and prints each fetched file.
"""

import hashlib
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import inf
from pathlib import Path
from types import MappingProxyType

COMMIT = "a" * 40
CHUNK_BYTES = 1 << 20
NO_FILE = MappingProxyType({"X-Error-Code": "EntryNotFound"})


class Hub(ThreadingHTTPServer):
    """A server of a repository's files.

    files: content by name.
    bytes_per_s: rate of all clients together.
    """

    daemon_threads = True

    def __init__(
        self,
        address: tuple[str, int],
        repository: str,
        files: Mapping[str, bytes],
        bytes_per_s: float = inf,
    ) -> None:
        super().__init__(address, _Handler)
        self.repository = repository
        self.files = files
        self.asked = Counter[str]()
        """Requests for files, such as ``GET config.json``."""
        self._bytes_per_s = bytes_per_s
        self._sending = threading.Lock()

    @cached_property
    def oids(self) -> dict[str, str]:
        """Return the hashes of the files by name."""
        return {
            name: hashlib.sha1(content, usedforsecurity=False).hexdigest()
            for name, content in self.files.items()
        }

    def pause(self, num_bytes: int) -> None:
        """Sleep for the time of ``num_bytes``."""
        with self._sending:
            time.sleep(num_bytes / self._bytes_per_s)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def _hub(self) -> Hub:
        assert isinstance(self.server, Hub)
        return self.server

    def do_HEAD(self) -> None:
        hub, path = self._hub, self.path.partition("?")[0]
        name = path.rpartition("/")[2]
        api = f"/api/models/{hub.repository}"
        if path in (api, f"{api}/revision/main", f"{api}/revision/{COMMIT}"):
            siblings = [{"rfilename": file} for file in hub.files]
            self._json({"id": hub.repository, "sha": COMMIT, "siblings": siblings})
        elif path in (f"{api}/tree/main", f"{api}/tree/{COMMIT}"):
            self._json(
                [
                    {"type": "file", "path": file, "size": len(content), "oid": hub.oids[file]}
                    for file, content in hub.files.items()
                ]
            )
        elif path.startswith(f"/{hub.repository}/resolve/") and name in hub.files:
            hub.asked[f"{self.command} {name}"] += 1
            headers = {"ETag": f'"{hub.oids[name]}"', "X-Repo-Commit": COMMIT}
            self._answer(hub.files[name], headers=headers)
        else:
            self._answer(b"", HTTPStatus.NOT_FOUND, NO_FILE)

    def do_GET(self) -> None:
        self.do_HEAD()

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _json(self, content: object) -> None:
        self._answer(json.dumps(content).encode())

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
            for start in range(0, len(body), CHUNK_BYTES):
                chunk = body[start : start + CHUNK_BYTES]
                self._hub.pause(len(chunk))
                self.wfile.write(chunk)


class _Told(Counter[str]):
    """A counter that prints the counted keys."""

    def __setitem__(self, what: str, num: int) -> None:
        super().__setitem__(what, num)
        print(what, flush=True)


def main() -> None:
    from macroserve.local.tiny_model import ensure_tiny_model

    repository, port, bytes_per_s = sys.argv[1:]
    folder = ensure_tiny_model(Path("/tmp/models"))
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    hub = Hub(("", int(port)), repository, files, float(bytes_per_s))
    hub.asked = _Told()
    hub.serve_forever()


if __name__ == "__main__":
    main()
