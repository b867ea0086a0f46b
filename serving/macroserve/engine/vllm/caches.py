"""The choice of an engine's caches, some of which exclude each other."""

from dataclasses import replace

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.platforms import current_platform

from macroserve.core.cache_decision import CacheDecision
from macroserve.core.hybrid_cache import decide_hybrid_cache
from macroserve.core.strategies import strategy
from macroserve.engine.rehearsal import rehearsal
from macroserve.engine.settings import EngineSettings
from macroserve.engine.vllm.hybrid.capability import find
from macroserve.engine.vllm.options import with_hybrid_cache

NO_HIDDEN_STATES = "a rehearsed device has no hidden states"


def with_caches(
    args: AsyncEngineArgs, settings: EngineSettings
) -> tuple[AsyncEngineArgs, CacheDecision]:
    """Return the arguments with the caches of the settings, and the decision on the hybrid cache.

    Prefix caching that is On excludes hidden states, and hidden states exclude prefix caching that
    is Auto; without them, Auto is vLLM's choice. Raises ValueError if both are On, and for prefix
    caching that the platform does not support with the model.
    """
    hybrid = decide_hybrid_cache(
        strategy(settings.strategy),
        settings.hybrid_cache,
        lambda: NO_HIDDEN_STATES if rehearsal() else find(args.create_engine_config()),
    )
    if hybrid.on:
        return with_hybrid_cache(args), hybrid
    if settings.prefix_caching != "Off" and _fails_on_shared_states(args):
        if settings.prefix_caching == "On":
            raise ValueError(
                "spec.engine.prefixCaching is On, must be Auto or Off for a model with recurrent "
                "layers on a CPU"
            )
    elif not settings.must_share_prefixes and settings.prefix_caching == "Auto":
        args = replace(args, enable_prefix_caching=None)
    return args, hybrid


def _fails_on_shared_states(args: AsyncEngineArgs) -> bool:
    """Return whether vLLM's kernel fails on prompts that share a recurrent state."""
    if not current_platform.is_cpu():
        return False
    model = args.create_model_config()
    return model.is_hybrid or model.is_attention_free
