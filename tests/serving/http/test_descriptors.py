"""A server in a separate process that may open few files."""

import contextlib
import json
import resource
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest

SERVER = textwrap.dedent(
    """
    import asyncio, resource, sys

    soft, hard = map(int, sys.argv[1:])
    from macroserve.serving import logs
    logs.configure()
    from macroserve.serving.http.server import HttpServer, bound

    async def app(scope, receive, send):
        with open("/dev/null"):
            await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    async def main():
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(3):
            server = HttpServer(app, grace_s=1)
        listener = bound("127.0.0.1", 0)
        await server.start(listener)
        soft_now, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        print("ready", listener.getsockname()[1], soft_now, flush=True)
        await asyncio.to_thread(sys.stdin.read)
        await server.stop()

    asyncio.run(main())
    """
)


@contextlib.contextmanager
def served(soft: int, hard: int) -> Iterator[tuple[int, int, list[str]]]:
    """Return the server's port, its present soft limit and its log so far."""
    command = [sys.executable, "-c", SERVER, str(soft), str(hard)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, text=True, **pipes) as process:  # type: ignore[call-overload]
        said = []
        for line in process.stdout:
            if line.startswith("ready "):
                _, port, soft_now = line.split()
                break
            said.append(line.strip())
        else:
            pytest.fail("\n".join(said))
        yield int(port), int(soft_now), said
        rest, _ = process.communicate("")
        said += rest.splitlines()


def ask(connection: socket.socket) -> bytes:
    """Return the status code of a response."""
    with contextlib.suppress(ConnectionError):
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    return connection.recv(4096).split()[1]


def test_connections_end_before_descriptors_do() -> None:
    with served(soft=100, hard=200) as (port, soft_now, said):
        assert soft_now == 200
        with contextlib.ExitStack() as stack:
            codes = [
                ask(
                    stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10.0))
                )
                for _ in range(150)
            ]
        assert codes == [b"204"] * 50 + [b"503"] * 100
        line = json.loads(said[0])
        assert line["event"] == "connection limit lowered"
        assert (line["connections"], line["wanted"], line["max_open_files"]) == (50, 8192, 200)
    assert len(said) == 1, said


def test_enough_descriptors_are_not_logged() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with served(soft=256, hard=hard) as (_, soft_now, said):
        assert soft_now == hard
    assert said == []
