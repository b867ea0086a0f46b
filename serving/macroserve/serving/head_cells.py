"""Where the cell schedulers are, for an ingress that shares no Ray with them: their head knows."""

from collections.abc import Mapping

import aiohttp
import msgspec

from macroserve.serving.auth import bearer

CELLS_PATH = "/cells"
TIMEOUT = aiohttp.ClientTimeout(total=2)


class HeadCells(msgspec.Struct, frozen=True):
    """The cells by name, each with the base URL of its scheduler."""

    cells: dict[str, str]


async def cells_of(head: str, secret: str) -> Mapping[str, str]:
    """Asks the head at that base URL, wherever its name leads now.

    Raises aiohttp.ClientError, TimeoutError or msgspec.MsgspecError when it does not tell.
    """
    async with (
        aiohttp.ClientSession(headers=bearer(secret), timeout=TIMEOUT) as http,
        http.get(head + CELLS_PATH) as response,
    ):
        response.raise_for_status()
        return msgspec.json.decode(await response.read(), type=HeadCells).cells
