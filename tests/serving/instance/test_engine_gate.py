import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from support.emulated_world import SETTINGS
from support.keys import live, source

from macroserve.api.access_token import Audience
from macroserve.api.keys import Purpose
from macroserve.core.status import Pool
from macroserve.engine.emulated import EmulatedEngine
from macroserve.engine.tokens import GENERATE_PATH
from macroserve.serving.instance.engine_gate import EngineGate
from macroserve.serving.instance.token_server import TokenServer, TokenServerOptions
from macroserve.serving.security.calls import session, to


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


async def test_request_after_the_engine_failed_gets_503_with_the_fault() -> None:
    answer = await asked("its engine has failed", GENERATE_PATH)
    assert answer.status_code == 503
    assert answer.json() == {"error": {"message": "its engine has failed"}}


@pytest.mark.parametrize(
    ("fault", "path"), [(None, GENERATE_PATH), ("its engine has failed", "/metrics")]
)
async def test_engine_gate_with_a_working_engine_or_another_path_passes(
    fault: str | None, path: str
) -> None:
    answer = await asked(fault, path)
    assert answer.status_code == 200 and answer.text == "from the engine"


async def test_token_server_whose_engine_failed_says_so_with_a_proof(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # No instance server: it would end the token server as soon as it saw the fault.
    server = TokenServer(
        TokenServerOptions(
            settings=SETTINGS, name="a", pool=Pool.LP, host="127.0.0.1", keys=source()
        )
    )
    started = await server.start(None, lambda beat: None)
    try:
        monkeypatch.setattr(EmulatedEngine, "fault", property(lambda self: "its engine has failed"))
        headers = to(Audience(Purpose.GENERATION, "a"))
        url = started.address + GENERATE_PATH
        async with session(live(), headers=headers) as http, http.post(url, json={}) as answer:
            assert answer.status == 503
            assert await answer.json() == {"error": {"message": "its engine has failed"}}
    finally:
        await server.stop()
