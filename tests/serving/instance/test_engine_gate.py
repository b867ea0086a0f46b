import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from macroserve.engine.tokens import GENERATE_PATH
from macroserve.serving.instance.engine_gate import EngineGate


async def asked(fault: str | None, path: str) -> httpx.Response:
    async def answer(request: object) -> PlainTextResponse:
        return PlainTextResponse("from the engine")

    app = EngineGate(
        Starlette(
            routes=[Route(GENERATE_PATH, answer, methods=["POST"]), Route("/metrics", answer)]
        ),
        lambda: fault,
    )
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://instance") as http:
        return await http.request("GET" if path == "/metrics" else "POST", path)


async def test_request_after_the_engine_failed_is_told_that_nothing_takes_it_in() -> None:
    answer = await asked("its engine has failed", GENERATE_PATH)
    assert answer.status_code == 503
    assert answer.json() == {"error": {"message": "its engine has failed"}}


@pytest.mark.parametrize(
    ("fault", "path"), [(None, GENERATE_PATH), ("its engine has failed", "/metrics")]
)
async def test_everything_else_passes(fault: str | None, path: str) -> None:
    answer = await asked(fault, path)
    assert answer.status_code == 200 and answer.text == "from the engine"
