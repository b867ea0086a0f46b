"""An ingress generates one real token before it is ready, by the way that every request goes."""

import asyncio
import contextlib

from macroserve.engine.tokens import Choice, RefusedError, TokenRequest, TokenStreamer
from macroserve.serving.ingress.cell_directory import CellDirectory

LOOK_S = 1.0
"""Longest time between two looks for an instance; a change of the directory ends it."""
RETRY_S = 0.05


async def first_token(directory: CellDirectory, streamer: TokenStreamer) -> None:
    """Return when an instance has generated a token.

    Until the directory has an instance, no cell is asked for one.
    """
    request = TokenRequest(
        request_id="ready",
        token_ids=(1,),
        max_new_tokens=1,
        sampling={"temperature": 0.0, "ignore_eos": True, "detokenize": False},
        options={},
        restartable=True,
        probe=True,
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
