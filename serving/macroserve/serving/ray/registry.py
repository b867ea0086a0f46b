"""Register the addresses of the cell schedulers under a few keys in Ray's cluster-wide store.

Asking Serve for the addresses would cost every ingress a tenth of a core; a key is read in half a
millisecond. An entry outlives a scheduler that was killed, and its successor overwrites it.
"""

import asyncio
from collections.abc import Mapping

from ray.experimental.internal_kv import (
    _internal_kv_del,
    _internal_kv_exists,
    _internal_kv_get,
    _internal_kv_list,
    _internal_kv_put,
)

_PREFIX = "macroserve-cell/"


def announce(name: str, url: str) -> None:
    _internal_kv_put(_PREFIX + name, url, overwrite=True)


def withdraw(name: str) -> None:
    _internal_kv_del(_PREFIX + name)


def is_announced(name: str) -> bool:
    return _internal_kv_exists(_PREFIX + name)


async def cell_urls() -> Mapping[str, str]:
    """Return the cells by name, each with the URL where its scheduler listened last."""
    return await asyncio.to_thread(_read)


def _read() -> dict[str, str]:
    names = [key.decode().removeprefix(_PREFIX) for key in _internal_kv_list(_PREFIX)]
    urls = {name: _internal_kv_get(_PREFIX + name) for name in names}
    return {name: url.decode() for name, url in urls.items() if url is not None}
