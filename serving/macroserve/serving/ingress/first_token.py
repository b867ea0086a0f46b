"""The first token of an ingress, which proves the whole request path before it is ready."""

import asyncio
import contextlib

from msgspec.structs import replace

from macroserve.engine.tokens import Choice, RefusedError, TokenRequest, TokenStreamer, pack
from macroserve.serving.ingress.cell_directory import CellDirectory

LOOK_S = 1.0
"""Longest wait for a change of the directory."""
RETRY_S = 0.05


async def first_token(directory: CellDirectory, streamer: TokenStreamer) -> None:
    """Wait until an instance has generated a token."""
    request = TokenRequest(
        request_id="ready",
        info=replace(streamer.info("ready"), probe=True),
        token_ids=pack([1]),
        max_new_tokens=1,
        sampling={"temperature": 0.0, "ignore_eos": True, "detokenize": False},
    )
    came = asyncio.Event()

    def put(choice: Choice) -> None:
        if choice.token_ids:
            came.set()

    while not came.is_set():
        if not directory.members:
            await directory.changed(LOOK_S)
            continue
        with contextlib.suppress(RefusedError):
            await streamer.stream(request, put)
        await asyncio.sleep(RETRY_S)
