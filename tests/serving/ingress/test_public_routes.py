"""All routes of the pinned vLLM are listed, so that new ones in later versions are noticed."""

import asyncio
from argparse import Namespace
from importlib import import_module

import pytest
from starlette.routing import BaseRoute, Mount, Route
from support.emulated_world import SETTINGS

from macroserve.engine.vllm.environment import prepare_environment
from macroserve.serving.ingress.public_routes import PUBLIC_ROUTES, UNSERVED

OWN = {"/health", "/ready"}
"""Routes of the ingress itself."""
NOT_PUBLIC = {
    "/load": "of one process; the cells' load is on the private port",
    "/metrics": "on the private port",
    "/ping": "SageMaker's probe",
    "/invocations": "SageMaker's way to every other route",
    "/kv_event_sources": "tells how the engine is built",
    "/scale_elastic_ep": "an order to the engine",
    "/is_scaling_elastic_ep": "an order to the engine",
    "/v1/systemone": "structured decisions: asks the engine's sampler on the spot",
    "/v1/chat/completions/render": "work for other servers' engines",
    "/v1/messages/render": "work for other servers' engines",
    "/v1/completions/render": "work for other servers' engines",
    "/v1/responses/render": "work for other servers' engines",
    "/v1/chat/completions/derender": "work for other servers' engines",
    "/v1/completions/derender": "work for other servers' engines",
    "/inference/v1/generate": "tokens in, tokens out: the instances' work",
    "/inference/v1/abort_requests": "an order to the engine",
    "/openapi.json": "no documentation is served",
    "/docs": "no documentation is served",
    "/docs/oauth2-redirect": "no documentation is served",
    "/redoc": "no documentation is served",
}
"""Routes of `vllm serve` that are not public, with the reason."""


def paths(routes: list[BaseRoute]) -> dict[str, set[str]]:
    """Return the methods by path, with every parameter as ``{id}``."""
    found: dict[str, set[str]] = {}
    for route in routes:
        assert isinstance(route, Route | Mount), f"{route} is of a kind that nobody has decided on"
        path = route.path.replace("{response_id}", "{id}")
        found.setdefault(path, set()).update(getattr(route, "methods", None) or ())
    return found


@pytest.fixture(scope="module", autouse=True)
def environment() -> None:
    prepare_environment()


def stock_paths() -> dict[str, set[str]]:
    from vllm.entrypoints.launchers.app import build_app
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    args = Namespace()
    make_arg_parser(FlexibleArgumentParser()).parse_args(["--model", "tiny"], args)
    return paths(build_app(args, ("generate",), None).routes)


def test_vllm_routes_are_either_public_or_left_out_for_a_reason() -> None:
    public = {route.path for route in PUBLIC_ROUTES}
    assert not public & set(NOT_PUBLIC)
    assert set(stock_paths()) | OWN == public | set(NOT_PUBLIC)


def test_routes_of_models_that_do_not_generate_are_refused_in_a_sentence() -> None:
    modules = [
        import_module(f"vllm.entrypoints.pooling.{kind}.api_router")
        for kind in ("pooling", "classify", "embed", "scoring")
    ]
    # Audio's need a package that is not there.
    refused = {path for path in UNSERVED if "/audio/" not in path}
    assert {path for module in modules for path in paths(module.router.routes)} == refused


def test_public_routes_take_the_methods_that_vllm_takes() -> None:
    stock = stock_paths()
    for route in PUBLIC_ROUTES:
        if route.path not in OWN:
            assert set(route.methods) == stock[route.path], route.path


def test_ingress_application_routes_are_all_public(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from unittest.mock import AsyncMock, Mock

    from macroserve.engine.vllm import api

    monkeypatch.setattr(api, "init_app_state", AsyncMock())
    app = asyncio.run(api.text_app(Mock(), SETTINGS))
    served = paths(app.routes)
    public = {route.path: set(route.methods) for route in PUBLIC_ROUTES}
    assert served.items() <= public.items()
    assert set(public) - set(served) <= OWN
