"""The processes of a fake deployment, and their answers to requests."""

from dataclasses import dataclass

from macroserve.core.status import Pool
from macroserve.operator.k8s import names


@dataclass
class Engine:
    """The process of an instance, last adopted by `cell`, with `tokens` left to send."""

    name: str
    address: str
    pool: Pool
    cell: str | None = None
    draining: bool = False
    tokens: int = 0
    tls: bool = False

    @property
    def url(self) -> str:
        """Return the address for its requests."""
        return f"{'https' if self.tls else 'http'}://{self.address}:{names.INSTANCE_PORT}"


@dataclass
class Answer:
    """The answer to a request, with the interface of aiohttp."""

    status: int
    body: bytes

    async def read(self) -> bytes:
        return self.body
