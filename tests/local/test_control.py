"""Orders to a running deployment."""

import asyncio

import pytest

from macroserve.api.manifest import ManifestError
from macroserve.local.control import ControlServer, OrderRefusedError, send
from macroserve.local.state import RunningDeployment

NOBODY = "127.0.0.1:9"
"""An address without a server."""


def _scale(instances: int) -> str:
    if instances > 9:
        raise ManifestError((f"{instances} are too many.",))
    return f"scaled to {instances}"


async def ordered(order: str, body: str) -> str:
    """Return the answer of a new control server."""
    server = ControlServer("token", lambda text: f"applied {text}", _scale)
    control = await server.start()
    try:
        deployment = RunningDeployment("test", 1, "http://e", "http://p", "admin", control, "token")
        return await asyncio.to_thread(send, deployment, order, body)
    finally:
        await server.stop()


@pytest.mark.parametrize(
    ("variable", "proxy"),
    [
        ("http_proxy", f"http://{NOBODY}"),
        ("HTTP_PROXY", f"http://{NOBODY}"),
        ("ALL_PROXY", f"http://{NOBODY}"),
        ("all_proxy", f"socks5://{NOBODY}"),
    ],
)
async def test_order_with_a_proxy_in_the_environment_goes_to_the_deployment_itself(
    monkeypatch: pytest.MonkeyPatch, variable: str, proxy: str
) -> None:
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setenv(variable, proxy)
    assert await ordered("scale", "3") == "scaled to 3"
    assert await ordered("apply", "a manifest") == "applied a manifest"


async def test_refused_order_tells_why() -> None:
    with pytest.raises(OrderRefusedError, match="10 are too many"):
        await ordered("scale", "10")
