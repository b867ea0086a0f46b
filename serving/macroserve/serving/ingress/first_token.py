"""The first token of an ingress, which proves the whole request path before it is ready."""

import asyncio
import contextlib

from msgspec.structs import replace

from macroserve.engine.tokens import Choice, RefusedError, TokenRequest, TokenStreamer
from macroserve.serving.ingress.cell_directory import CellDirectory

LOOK_S = 1.0
"""Longest wait for a change of the directory."""
RETRY_S = 0.05


async def first_token(directory: CellDirectory, streamer: TokenStreamer) -> None:
    """Wait until an instance has generated a token."""
    request = TokenRequest.greedy(replace(streamer.info("ready"), probe=True), [1], 1)
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
