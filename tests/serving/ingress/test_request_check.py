"""The check of bodies in front of the application."""

import json
from dataclasses import replace
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from support.slo_classes import INTERACTIVE, default_class

from macroserve.api.limits import RequestLimits
from macroserve.serving.ingress.body_limit import BodyLimit
from macroserve.serving.ingress.request_check import RequestCheck
from macroserve.serving.ingress.request_targets import RequestTargets, current_class

NONE = replace(default_class(), name="none")


async def echo(request: Request) -> Response:
    body = await request.body()
    targets = current_class(NONE)
    told = {"class": targets.name, "ttft": f"{targets.slo.ttft_s}"}
    session = request.headers.getlist("x-session-id")
    return JSONResponse({"body": body.decode()}, headers=told | {"sessions": ",".join(session)})


async def post(path: str, body: bytes, **headers: str) -> httpx.Response:
    app = Starlette(routes=[Route("/{path:path}", echo, methods=["GET", "POST"])])
    targets = RequestTargets(default_class(), (INTERACTIVE,), takes_numbers=True)
    checked = BodyLimit(app, RequestCheck(RequestLimits(), targets))
    transport = httpx.ASGITransport(app=checked)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        return await http.post(path, content=body, headers=headers)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"[]", "not a JSON object"),
        (b"null", "not a JSON object"),
        (b"{", "not valid JSON"),
        (b'{"temperature": NaN}', "not valid JSON"),
        (b'{"prompt": "\\ud800 x"}', "not valid JSON"),
        (b'{"prompt": "\xff"}', "not valid JSON"),
        (b'{"seed": ' + b"9" * 100_000 + b"}", "not valid JSON"),
        (b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}", "nested too deeply"),
        (b"[" * 20_000, "objects and arrays"),
        (b'{"n": 1000000}', "n is 1000000"),
    ],
)
async def test_body_that_fails_the_check_gets_400_in_openai_shape(body: bytes, says: str) -> None:
    for path in ("/v1/chat/completions", "/tokenize", "/generative_scoring"):
        response = await post(path, body)
        assert response.status_code == 400
        error = response.json()["error"]
        assert says in error["message"] and error["code"] == 400


async def test_application_gets_the_body_that_was_checked() -> None:
    response = await post("/v1/completions", b'{"n": 1000000, "prompt": "a", "n": 2}')
    assert json.loads(response.json()["body"]) == {"n": 2, "prompt": "a"}


@pytest.mark.parametrize("path", ["/admin/v1/cells", "/other"])
async def test_request_check_ignores_other_paths(path: str) -> None:
    assert (await post(path, b'{"n": 1000000}')).json() == {"body": '{"n": 1000000}'}


async def test_request_check_passes_an_empty_body() -> None:
    assert (await post("/v1/responses/x/cancel", b"")).json() == {"body": ""}


@pytest.mark.parametrize("value", [1, "text", [1.5, None, True], {"ä": "\u2028"}])
async def test_request_check_keeps_the_meaning_of_a_good_body(value: Any) -> None:
    body = {"prompt": value, "seed": 2**63 - 1, "temperature": 0.1}
    response = await post("/v1/completions", json.dumps(body).encode())
    assert json.loads(response.json()["body"]) == body


async def test_application_reads_other_names_of_a_session_as_the_one_of_vllm() -> None:
    for headers, body, sessions in (
        ({}, b"{}", ""),
        ({"X-Session-Id": "one", "session_id": "two"}, b"{}", "one"),
        ({"session_id": "two"}, b"{}", "two"),
        ({}, b'{"prompt_cache_key": "key"}', "key"),
        ({"X-Session-Id": ""}, b'{"prompt_cache_key": "key"}', "key"),
    ):
        answer = await post("/v1/chat/completions", body, **headers)
        assert answer.headers["sessions"] == sessions


async def test_application_runs_in_the_class_of_its_request() -> None:
    plain = await post("/v1/completions", b"{}")
    assert (plain.headers["class"], plain.headers["ttft"]) == ("default", "5.0")
    by_model = await post("/v1/completions", b'{"model": "llama-chat"}')
    assert (by_model.headers["class"], by_model.headers["ttft"]) == ("interactive", "1.0")
    numbers = {"X-SLO-Class": "interactive", "X-SLO-TTFT-Ms": "250"}
    named = await post("/v1/completions", b"{}", **numbers)
    assert (named.headers["class"], named.headers["ttft"]) == ("interactive", "0.25")
    assert current_class(NONE) is NONE, "the class ends with its request"


async def test_request_of_an_unknown_class_gets_400_in_openai_shape() -> None:
    response = await post("/v1/completions", b"{}", **{"X-SLO-Class": "gold"})
    assert response.status_code == 400
    assert response.json()["error"]["message"] == (
        "x-slo-class is not an SLO class; known are: default, interactive"
    )
