"""Move instances between cells."""

import httpx
from starlette.applications import Starlette
from support.emulated_world import World
from support.keys import live

from macroserve.api import messages
from macroserve.serving.admin import AdminApi
from macroserve.serving.security.calls import session


async def migrate(world: World, instance: str, source: str, target: str) -> None:
    """Move an instance as the operator does, by the admin API."""
    answer = await migration(world, instance, source, target)
    assert answer.status_code == 200


async def migration(world: World, instance: str, source: str, target: str) -> httpx.Response:
    """Return the admin API's answer to a migration."""

    async def discover() -> dict[str, str]:
        return world.urls

    async with session(live()) as http:
        app = Starlette(routes=AdminApi(discover, http, lambda: "token").routes())
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://admin") as client:
            return await client.post(
                f"{messages.ADMIN_PREFIX}/migrate",
                content=messages.encode(messages.MigrateOrder(instance, source, target)),
                headers={"Authorization": "Bearer token"},
            )
