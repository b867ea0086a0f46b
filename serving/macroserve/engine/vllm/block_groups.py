"""vLLM's groups of layers that share a block pool, as the scheduler counts their blocks."""

from collections.abc import Iterable

from vllm.config import VllmConfig
from vllm.v1.core.single_type_kv_cache_manager import SingleTypeKVCacheManager
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    MambaSpec,
    SlidingWindowSpec,
)

from macroserve.core.scheduler.blocks import BlockGroup


def block_groups(
    managers: Iterable[SingleTypeKVCacheManager], config: VllmConfig
) -> tuple[BlockGroup, ...]:
    """Return the groups; none for a single group of full attention. Raises ValueError for a kind of
    cache whose size cannot be predicted."""
    groups = tuple([_group(manager, config) for manager in managers])
    return () if len(groups) == 1 and groups[0].max_blocks is None else groups


def max_decoding_tokens(config: VllmConfig) -> int:
    """Return the maximum tokens in flight of a decoding request."""
    return config.max_concurrent_batches * (1 + config.num_speculative_tokens)


def piece_tokens(config: VllmConfig) -> int:
    """Return the number of tokens at whose multiples a chunk of a prompt may end."""
    if not config.scheduler_config.enable_chunked_prefill:
        return config.model_config.max_model_len
    # Elsewhere, the state of recurrent layers is not cached.
    cache = config.cache_config
    return cache.block_size if cache.mamba_cache_mode == "align" else 1


def _group(manager: SingleTypeKVCacheManager, config: VllmConfig) -> BlockGroup:
    spec, size = manager.kv_cache_spec, manager.block_size
    match spec:
        case FullAttentionSpec():
            return BlockGroup(size)
        case SlidingWindowSpec() | ChunkedLocalAttentionSpec():
            most = [
                spec.max_admission_blocks_per_request(
                    max_in_flight_tokens=num_tokens, max_model_len=config.model_config.max_model_len
                )
                for num_tokens in (config.max_in_flight_tokens, max_decoding_tokens(config))
            ]
            return BlockGroup(size, *most)
        case MambaSpec():
            most = spec.max_memory_usage_bytes(config) // spec.page_size_bytes
            # A state is freed when the batch that has read it ends.
            most += config.max_concurrent_batches - 1
            return BlockGroup(size, most, most)
    raise ValueError(
        f"models with a cache of kind {type(spec).__name__} are not supported: "
        "the scheduler cannot tell how many blocks a request takes"
    )
