import socket

import pytest
from cluster import ports


def test_free_ports_are_different_and_free() -> None:
    found = ports.free("127.0.0.1", 20)
    assert len(set(found)) == 20
    for port in found:
        with socket.socket() as server:
            server.bind(("127.0.0.1", port))


def test_free_ports_skip_a_taken_port(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        (other,) = ports.free("127.0.0.1", 1)
        monkeypatch.setattr("random.sample", lambda *_: [port, other])
        assert ports.free("127.0.0.1", 1) == [other]
