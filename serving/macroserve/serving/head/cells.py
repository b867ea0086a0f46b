"""The head's list of cell schedulers, as ingresses request it."""

from collections.abc import Mapping

import aiohttp
import msgspec

from macroserve.api.access_token import Audience
from macroserve.api.keys import Purpose
from macroserve.serving.security.calls import to

CELLS_PATH = "/cells"
TIMEOUT = aiohttp.ClientTimeout(total=2)


class HeadCells(msgspec.Struct, frozen=True):
    cells: dict[str, str]
    """Base URL of each cell's scheduler."""


async def cells_of(head: str, http: aiohttp.ClientSession) -> Mapping[str, str]:
    """Return the cells of the head at a base URL. Raises aiohttp.ClientError, TimeoutError or
    msgspec.MsgspecError.

    http: a session of ``calls.session``.
    """
    headers = to(Audience(Purpose.CELLS))
    async with http.get(head + CELLS_PATH, headers=headers, timeout=TIMEOUT) as response:
        response.raise_for_status()
        return msgspec.json.decode(await response.read(), type=HeadCells).cells
