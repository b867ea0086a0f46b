"""Addresses of the cell schedulers, asked from their head by an ingress that shares no Ray with
them."""

from collections.abc import Mapping

import aiohttp
import msgspec

from macroserve.api.access_token import Audience
from macroserve.api.keys import Purpose
from macroserve.serving.security.calls import to

CELLS_PATH = "/cells"
TIMEOUT = aiohttp.ClientTimeout(total=2)


class HeadCells(msgspec.Struct, frozen=True):
    """The head lists the cells by name, each with the base URL of its scheduler."""

    cells: dict[str, str]


async def cells_of(head: str, http: aiohttp.ClientSession) -> Mapping[str, str]:
    """Ask the head at a base URL for its cells, over the connection that is open or wherever its
    name leads now.

    http: a session of ``calls.session``.

    Raises aiohttp.ClientError, TimeoutError or msgspec.MsgspecError when it does not tell.
    """
    headers = to(Audience(Purpose.CELLS))
    async with http.get(head + CELLS_PATH, headers=headers, timeout=TIMEOUT) as response:
        response.raise_for_status()
        return msgspec.json.decode(await response.read(), type=HeadCells).cells
