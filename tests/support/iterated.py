"""Streams of choices as iterators."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable

from macroserve.engine.tokens import Choice, Put


async def iterated(stream: Callable[[Put], Awaitable[None]]) -> AsyncGenerator[Choice, None]:
    """Yield the choices of ``stream``, then raise its exception, if any."""
    choices: asyncio.Queue[Choice | None] = asyncio.Queue()

    async def run() -> None:
        try:
            await stream(choices.put_nowait)
        finally:
            choices.put_nowait(None)

    task = asyncio.create_task(run())
    try:
        while (choice := await choices.get()) is not None:
            yield choice
        await task
    finally:
        task.cancel()
        await asyncio.wait([task])


class QueueReader:
    """A reader of an instance's tokens (``engine.tokens.TokenReader``) for one task.

    Attributes:
        coming: choices, and the messages of failures.
    """

    def __init__(self) -> None:
        self.coming: asyncio.Queue[Choice | str] = asyncio.Queue()

    def put(self, choice: Choice) -> None:
        self.coming.put_nowait(choice)

    def fail(self, message: str) -> None:
        self.coming.put_nowait(message)

    async def next(self) -> Choice:
        """Return the next choice. Raises RuntimeError if the request has failed."""
        got = await self.coming.get()
        if isinstance(got, str):
            raise RuntimeError(got)
        return got

    async def rest(self) -> list[Choice]:
        """Return all further choices."""
        found = [await self.next()]
        while found[-1].finish_reason is None:
            found.append(await self.next())
        return found
