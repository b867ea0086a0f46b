"""What the admin API is told: who gives an order and who carries it out share these, as JSON."""

import msgspec

from macroserve.core.views import Pool

ADMIN_PREFIX = "/admin/v1"
"""Of every path of the API."""


class AdoptOrder(msgspec.Struct, frozen=True):
    """handle: signed. It is also the answer to a release."""

    handle: str


class ReleaseOrder(msgspec.Struct, frozen=True):
    name: str


class PoolOrder(msgspec.Struct, frozen=True):
    """pool: one that is known, since ``Pool`` takes unknown ones for LP."""

    name: str
    pool: str

    def __post_init__(self) -> None:
        if self.pool not in list(Pool):
            raise ValueError(f"pool must be one of {', '.join(Pool)}")


class DrainOrder(msgspec.Struct, frozen=True):
    name: str
    draining: bool


class MigrateOrder(msgspec.Struct, frozen=True):
    """source, target: cells."""

    instance: str
    source: str
    target: str
