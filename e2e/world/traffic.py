"""A steady stream of requests, whose responses are checked."""

import asyncio
import threading
import time

import httpx

from world.waiting import eventually

REACHED_S = 30
DRAIN_S = 120
"""Time for all requests to end; one may wait a minute for an instance."""


class Traffic:
    """Streaming completions, ``rate`` a second, until left. A request with all its tokens counts as
    complete, any other as a failure. ``slo_class`` is the default one if empty."""

    def __init__(
        self,
        endpoint: str,
        rate: float = 5.0,
        num_tokens: int = 40,
        prompt_tokens: int = 60,
        slo_class: str = "",
    ) -> None:
        self.sent = 0
        self.complete = 0
        self.failures: list[str] = []
        self.ttft_s: list[tuple[float, float]] = []
        """Time at which each request was sent (monotonic), and its TTFT."""
        self._endpoint = endpoint
        self._rate = rate
        self._num_tokens = num_tokens
        self._prompt_tokens = prompt_tokens
        self._headers = {"x-slo-class": slo_class} if slo_class else {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def __enter__(self) -> "Traffic":
        # kube-proxy learns of a Service's ready pods a moment after the operator does.
        eventually(self._is_reached, REACHED_S)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.end()
        self._thread.join(DRAIN_S)
        if self._thread.is_alive():
            self.failures.append(f"requests still run after {DRAIN_S} s")

    def end(self) -> None:
        """Stop sending; running requests continue."""
        self._stop.set()

    def after(self, count: int, timeout_s: float = 120) -> None:
        """Wait until ``count`` more requests are complete."""
        wanted = self.complete + count
        eventually(lambda: self.complete >= wanted or self.failures, timeout_s)

    def endpoint(self) -> str:
        """Return the endpoint of the next request."""
        return self._endpoint

    def _is_reached(self) -> bool:
        try:
            return httpx.get(self.endpoint() + "/health", timeout=5).is_success
        except httpx.TransportError:
            return False

    async def _run(self) -> None:
        limits = httpx.Limits(max_connections=None)
        async with (
            httpx.AsyncClient(limits=limits, timeout=60) as http,
            asyncio.TaskGroup() as tasks,
        ):
            while not self._stop.is_set():
                tasks.create_task(self._one(http))
                await asyncio.sleep(1 / self._rate)

    async def _one(self, http: httpx.AsyncClient) -> None:
        self.sent += 1
        endpoint = self.endpoint()
        try:
            await self._stream(http, endpoint)
            self.complete += 1
        except Exception as error:
            # Any error counts as a failure of the service.
            self.failures.append(f"{time.strftime('%X')} {endpoint} {error!r}")

    async def _stream(self, http: httpx.AsyncClient, endpoint: str) -> None:
        body = {
            "model": "tiny-llama",
            "prompt": [7] * self._prompt_tokens,
            # No prefix cache may have the prompt.
            "cache_salt": f"{id(self)}-{self.sent}",
            "max_tokens": self._num_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        sent = time.monotonic()
        url = endpoint + "/v1/completions"
        async with http.stream("POST", url, json=body, headers=self._headers) as response:
            text = await self._read(response, sent)
        assert response.status_code == 200, text
        assert text.endswith("data: [DONE]\n\n"), text[-200:]
        assert f'"completion_tokens":{self._num_tokens}' in text, text[-400:]

    async def _read(self, response: httpx.Response, sent: float) -> str:
        text = ""
        async for chunk in response.aiter_text():
            if not text:
                self.ttft_s.append((sent, time.monotonic() - sent))
            text += chunk
        return text
