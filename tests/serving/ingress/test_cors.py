"""Pages of allowed origins may call the API from a browser."""

import pytest
from support.public_app import WITH_KEY, FakeApp, call, guarded

from macroserve.serving.ingress.cors import with_cors

ORIGIN = "https://app.example"
ORIGINS = {
    "allowed_origins": [ORIGIN],
    "allowed_methods": ["*"],
    "allowed_headers": ["*"],
    "allow_credentials": False,
}


@pytest.mark.parametrize(
    ("path", "method", "headers", "status"),
    [
        ("/v1/completions", "POST", WITH_KEY, 200),
        ("/v1/completions", "POST", {}, 401),
        ("/v1/messages", "POST", {}, 401),
        ("/v1/completions", "DELETE", {}, 405),
        ("/nothing", "GET", {}, 404),
        ("/v1/completions", "POST", {**WITH_KEY, "content-length": "999999999"}, 413),
    ],
)
def test_page_of_an_allowed_origin_can_read_every_answer(
    path: str, method: str, headers: dict[str, str], status: int
) -> None:
    app = with_cors(guarded(FakeApp()), ORIGINS)
    answer = call(app, path, method=method, headers={**headers, "origin": ORIGIN})
    assert answer.status == status
    assert answer.headers["access-control-allow-origin"] == ORIGIN
    other = call(app, path, method=method, headers={**headers, "origin": "https://other.example"})
    assert other.status == status
    assert "access-control-allow-origin" not in other.headers


PREFLIGHT = {"origin": ORIGIN, "access-control-request-method": "POST"}


def test_preflight_needs_no_key_and_calls_nothing() -> None:
    app = FakeApp()
    asked = {**PREFLIGHT, "access-control-request-headers": "authorization"}
    answer = call(
        with_cors(guarded(app), ORIGINS), "/v1/chat/completions", method="OPTIONS", headers=asked
    )
    assert (answer.status, app.bodies, answer.num_received) == (200, [], 0)
    assert answer.headers["access-control-allow-origin"] == ORIGIN
    assert answer.headers["access-control-allow-headers"] == "authorization"


def test_preflight_without_origins_is_refused() -> None:
    app = FakeApp()
    answer = call(
        with_cors(guarded(app), {}), "/v1/completions", method="OPTIONS", headers=PREFLIGHT
    )
    assert (answer.status, app.bodies) == (405, [])
    assert "access-control-allow-origin" not in answer.headers
