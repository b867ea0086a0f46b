import pytest
from support.emulated_world import SETTINGS
from support.keys import live, source

from macroserve.api.access_token import Audience
from macroserve.api.keys import Purpose
from macroserve.core.status import Pool
from macroserve.engine.emulated import EmulatedEngine
from macroserve.engine.token_frames import CALL_PATH, FRAMES_PATH
from macroserve.serving.instance.token_server import TokenServer, TokenServerOptions
from macroserve.serving.security.calls import session, to


@pytest.mark.parametrize(("method", "path"), [("GET", FRAMES_PATH), ("POST", CALL_PATH)])
async def test_token_server_whose_engine_failed_answers_503_with_the_fault_and_a_proof(
    monkeypatch: pytest.MonkeyPatch, method: str, path: str
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
        async with session(live()) as http:
            async with http.request(method, started.address + path, headers=headers) as answer:
                assert answer.status == 503
                assert await answer.json() == {"error": {"message": "its engine has failed"}}
            async with http.get(started.address + "/metrics") as answer:
                assert answer.status == 200
    finally:
        await server.stop()
