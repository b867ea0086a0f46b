"""Registry of the cell schedulers' addresses, and of this machine's instances, in Ray's store.

Serve could also return the schedulers' addresses, but takes a tenth of a core; a key is read in
half a millisecond. The entry of a killed process remains until its successor overwrites it.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from ray.experimental.internal_kv import (
    _internal_kv_del,
    _internal_kv_exists,
    _internal_kv_get,
    _internal_kv_list,
    _internal_kv_put,
)

from macroserve.api.messages import InstanceIdentity
from macroserve.serving.discovery import identities
from macroserve.serving.security.key_source import KeySource

_CELL = "macroserve-cell/"
_INSTANCE = "macroserve-instance/"


def announce(name: str, url: str) -> None:
    _internal_kv_put(_CELL + name, url, overwrite=True)


def withdraw(name: str) -> None:
    _internal_kv_del(_CELL + name)


def is_announced(name: str) -> bool:
    return _internal_kv_exists(_CELL + name)


async def cell_urls() -> Mapping[str, str]:
    """Return the last known URL of each cell's scheduler."""
    return await asyncio.to_thread(_read, _CELL)


def announce_instance(name: str, url: str) -> None:
    _internal_kv_put(_INSTANCE + name, url, overwrite=True)


def withdraw_instance(name: str) -> None:
    _internal_kv_del(_INSTANCE + name)


def instance_urls() -> Mapping[str, str]:
    """Return the URL of each instance's control server."""
    return _read(_INSTANCE)


@dataclass(frozen=True, slots=True)
class RegisteredInstances:
    """Instances registered in this process's Ray cluster."""

    keys: KeySource

    async def find(self) -> list[InstanceIdentity]:
        urls = await asyncio.to_thread(instance_urls)
        return await identities(urls.values(), self.keys)


def _read(prefix: str) -> dict[str, str]:
    names = [key.decode().removeprefix(prefix) for key in _internal_kv_list(prefix)]
    urls = {name: _internal_kv_get(prefix + name) for name in names}
    return {name: url.decode() for name, url in urls.items() if url is not None}
