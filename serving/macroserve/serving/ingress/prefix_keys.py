"""Keys of a prompt's prefixes, by which cells find the instances that have them cached."""

import asyncio
from hashlib import blake2b

from macroserve.api.messages import PREFIX_KEY_BYTES
from macroserve.core.routing.prefixes import BOUNDARIES, num_keys
from macroserve.engine.tokens import TOKEN_BYTES, TokenRequest


async def prefix_keys(request: TokenRequest) -> bytes:
    """Return the keys (``messages.RouteQuery.prefix``) of a prompt's cacheable prefixes; empty if
    the request does not use the prefix cache."""
    sampling = request.sampling
    if sampling.get("prompt_logprobs") is not None or sampling.get("skip_reading_prefix_cache"):
        return b""
    digest = blake2b(digest_size=PREFIX_KEY_BYTES)
    digest.update(repr((request.adapter, request.cache_salt)).encode())
    if request.features:
        # In a thread, as hashing megabytes would delay other requests' tokens.
        await asyncio.to_thread(digest.update, request.features)
    keys = bytearray()
    start = 0
    for end in BOUNDARIES[: num_keys(request.num_prompt_tokens)]:
        digest.update(request.token_ids[TOKEN_BYTES * start : TOKEN_BYTES * end])
        keys += digest.copy().digest()
        start = end
    return bytes(keys)
