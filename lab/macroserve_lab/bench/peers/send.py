"""Sending of planned requests, independently of answers."""

import asyncio
from collections.abc import Sequence

from macroserve.bench.serve.client import LoadClient
from macroserve.bench.serve.payload import PayloadMaker
from macroserve.bench.serve.record import RequestRecord
from macroserve.workload.arrivals import Arrival


async def send(
    client: LoadClient, planned: Sequence[Arrival], payloads: PayloadMaker
) -> list[RequestRecord]:
    """Return the records of all requests, in order of arrival."""
    return await client.run(planned, payloads, asyncio.Event(), lambda: None, lambda _: None)
