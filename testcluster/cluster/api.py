"""A client of Kubernetes' API for the test cluster itself."""

import ssl
import time
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import httpx

_TIMEOUT_S = 10.0
_WATCH_S = 300
_RETRY_S = 0.2


@dataclass(frozen=True)
class Access:
    """The address of an API and a user's credentials, as text for a process's arguments."""

    url: str
    authority: str
    """The path of its CA certificate."""
    certificate: str
    key: str

    @property
    def arguments(self) -> list[str]:
        return list(astuple(self))


class Api:
    def __init__(self, access: Access) -> None:
        context = ssl.create_default_context(cafile=access.authority)
        context.load_cert_chain(access.certificate, access.key)
        self._http = httpx.Client(
            base_url=access.url, verify=context, timeout=_TIMEOUT_S, trust_env=False
        )

    def close(self) -> None:
        self._http.close()

    def is_ready(self, *, without: Sequence[str] = ()) -> bool:
        """Return whether the server is ready, ignoring the checks named in `without`."""
        try:
            return self._http.get("/readyz", params={"exclude": list(without)}).is_success
        except httpx.TransportError:
            return False

    def get(self, path: str) -> dict[str, Any]:
        """Raises httpx.HTTPError."""
        return self._http.get(path).raise_for_status().json()

    def find(self, path: str) -> dict[str, Any] | None:
        """Return the object at `path`, or None if it does not exist or the call fails."""
        try:
            return self.get(path)
        except httpx.HTTPError:
            return None

    def create(self, path: str, document: dict[str, Any]) -> bool:
        """Create an object; return False if it already exists."""
        response = self._http.post(path, json=document)
        if response.status_code == httpx.codes.CONFLICT:
            return False
        response.raise_for_status()
        return True

    def patch(self, path: str, change: dict[str, Any]) -> None:
        headers = {"Content-Type": "application/merge-patch+json"}
        self._http.patch(path, json=change, headers=headers).raise_for_status()

    def delete(self, path: str) -> None:
        response = self._http.delete(path)
        if response.status_code != httpx.codes.NOT_FOUND:
            response.raise_for_status()

    def watch(self, path: str) -> Iterator[dict[str, Any]]:
        """Yield the list at `path` now and after each change, also after outages."""
        while True:
            try:
                found = self.get(path)
                yield found
                query = {
                    "watch": "true",
                    "resourceVersion": found["metadata"]["resourceVersion"],
                    "timeoutSeconds": str(_WATCH_S),
                }
                timeout = httpx.Timeout(_TIMEOUT_S, read=_WATCH_S + _TIMEOUT_S)
                with self._http.stream("GET", path, params=query, timeout=timeout) as events:
                    for _ in events.iter_lines():
                        yield self.get(path)
            except (httpx.HTTPError, httpx.StreamError):
                time.sleep(_RETRY_S)
