"""Serve one part of a deployment on this machine in a process of its own.

Run as ``python -m macroserve.local.part NAME FD``, FD being the process's end of a socket pair. It
serves what a pod serves; ``part_process`` has the other end.
"""

import asyncio
import contextlib
import os
import sys
from multiprocessing.connection import Connection

import uvloop

from macroserve.engine.exits import die_with_parent
from macroserve.local.parts import Beat, Failed, Part, Started
from macroserve.serving import logs
from macroserve.serving.causes import cause_of

BEAT_S = 1.0
"""Seconds between two heartbeats, with each of which the part checks itself."""


async def _serve(part: Part, parent: Connection) -> None:
    """Serve until the part fails or nobody listens to it."""
    try:
        server = part.server()
        parent.send(Started(await server.start()))
        while True:
            await asyncio.sleep(BEAT_S)
            server.check()
            parent.send(Beat())
    except Exception as error:
        # Whatever an engine or a server raises: a bad model, no memory, a port that is taken.
        parent.send(Failed(cause_of(error)))


def main(fd: int) -> None:
    die_with_parent()
    logs.configure()
    parent = Connection(fd)
    # The parent is gone, or wants nothing of this any more.
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        part = parent.recv()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(part, parent))
    # What the part has started ends with this process.
    os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[2]))
