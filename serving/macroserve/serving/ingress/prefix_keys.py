"""Keys of a prompt's prefixes, by which cells find the instances that have them cached."""

import asyncio
from array import array
from hashlib import blake2b

from macroserve.api.messages import PREFIX_KEY_BYTES
from macroserve.core.routing.prefixes import BOUNDARIES, num_keys
from macroserve.engine.tokens import TokenRequest


async def prefix_keys(request: TokenRequest) -> bytes:
    """Return the keys (``messages.RouteQuery.prefix``) of a prompt's cacheable prefixes; empty if
    the request does not use the prefix cache."""
    sampling, options = request.sampling, request.options
    if sampling.get("prompt_logprobs") is not None or sampling.get("skip_reading_prefix_cache"):
        return b""
    digest = blake2b(digest_size=PREFIX_KEY_BYTES)
    digest.update(repr((request.adapter, options.get("cache_salt"))).encode())
    if images := options.get("features"):
        # In a thread, as hashing megabytes would delay other requests' tokens.
        await asyncio.to_thread(digest.update, images)
    keys = bytearray()
    start = 0
    for end in BOUNDARIES[: num_keys(len(request.token_ids))]:
        digest.update(array("I", request.token_ids[start:end]))
        keys += digest.copy().digest()
        start = end
    return bytes(keys)
