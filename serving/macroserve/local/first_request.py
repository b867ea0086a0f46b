"""Wait for readiness, and an example command that works with the served model."""

import asyncio
import contextlib
import json
import shlex
import urllib.request
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from macroserve.api.auth import bearer
from macroserve.serving.ingress.api_keys import ApiKeysError, ApiKeySource

ANSWER_TIMEOUT_S = 10.0
READY_ANSWER_TIMEOUT_S = 5.0
READY_POLL_S = 0.2
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}]}
TEXT: dict[str, Any] = {"prompt": "Hello"}


async def until_ready(endpoint: str) -> None:
    """Return once the endpoint reports that it is ready."""
    timeout = aiohttp.ClientTimeout(total=READY_ANSWER_TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout) as http:
        while True:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                async with http.get(endpoint + "/ready") as response:
                    if response.status == 200:
                        return
            await asyncio.sleep(READY_POLL_S)


async def first_request(endpoint: str, model: str, api_keys: ApiKeySource | None) -> str:
    """Return a curl command: a chat, or a completion if the model has no chat template."""
    is_chat = await _has_chat_template(endpoint, model, api_keys)
    path, prompt = ("chat/completions", CHAT) if is_chat else ("completions", TEXT)
    body = json.dumps({"model": model, "stream": True, "max_tokens": 32, **prompt})
    key = ' -H "Authorization: Bearer $KEY"' if api_keys else ""
    return (
        f"curl -N{_noproxy(endpoint)} {endpoint}/v1/{path}{key} "
        f"-H 'Content-Type: application/json' \\\n    -d {shlex.quote(body)}"
    )


async def _has_chat_template(endpoint: str, model: str, api_keys: ApiKeySource | None) -> bool:
    """Ask the endpoint, because vLLM has its own templates for some models."""
    try:
        headers = bearer(api_keys.read()[0]) if api_keys else {}
        timeout = aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S)
        async with (
            aiohttp.ClientSession(headers=headers, timeout=timeout) as http,
            http.post(f"{endpoint}/tokenize", json={"model": model, **CHAT}) as response,
        ):
            return response.status != 400
    except (ApiKeysError, aiohttp.ClientError, TimeoutError):
        return True


def _noproxy(endpoint: str) -> str:
    """Return the option that keeps curl from using a proxy for this machine."""
    goes_by_proxy = urllib.request.getproxies() and not (
        urllib.request.proxy_bypass(urlsplit(endpoint).netloc)
    )
    return " --noproxy '*'" if goes_by_proxy else ""
