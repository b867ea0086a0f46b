"""The ingress's HTTP application, built of vLLM's parts."""

from argparse import Namespace

import vllm
from fastapi import FastAPI
from vllm.engine.protocol import EngineClient
from vllm.entrypoints.generate.api_router import register_generate_api_routers
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.openai.models.api_router import attach_router as attach_models
from vllm.entrypoints.openai.models.protocol import LoRAModulePath
from vllm.entrypoints.serve.exception_handling.register import init_exception_handler
from vllm.entrypoints.serve.tokenize.api_router import attach_router as attach_tokenize
from vllm.utils.argparse_utils import FlexibleArgumentParser

from macroserve.api.limits import RequestLimits, limits_for
from macroserve.engine.settings import EngineSettings
from macroserve.engine.vllm.chat_template import template_variables
from macroserve.engine.vllm.versions import load_chat_template, make_arg_parser


async def text_app(engine: EngineClient, settings: EngineSettings) -> FastAPI:
    """Build the ingress's API (completions, chat, messages, tokenization, ...) over ``engine``."""
    args = _arguments(settings)
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    app.state.args = args
    await init_app_state(engine, app.state, args, ("generate",))
    init_exception_handler(app)
    attach_models(app)
    attach_tokenize(app)
    register_generate_api_routers(app)
    app.add_api_route("/version", _version)
    return app


async def _version() -> dict[str, str]:
    """Return vLLM's version, as vLLM's server does."""
    return {"version": vllm.__version__}


def limits_of(engine: EngineClient, app: FastAPI) -> RequestLimits:
    config = engine.model_config
    template = load_chat_template(app.state.args.chat_template)
    tokenizer = engine.renderer.tokenizer
    return limits_for(config.max_model_len, template_variables(tokenizer, config, template))


def _arguments(settings: EngineSettings) -> Namespace:
    """Return vLLM's server options: defaults, the model and the options of ``spec.api``."""
    args = Namespace()
    make_arg_parser(FlexibleArgumentParser()).parse_args(["--model", settings.model], args)
    args.served_model_name = [settings.served_name]
    args.lora_modules = [LoRAModulePath(name, path) for name, path in settings.adapters.items()]
    for name, value in settings.api.items():
        setattr(args, name, value)
    if parser := settings.api.get("reasoning_parser"):
        args.structured_outputs_config.reasoning_parser = parser
    return args
