"""A cell's scheduler listens on a port of the cell's number."""

import socket

import pytest
from support.keys import live

from macroserve.core.request import Slo
from macroserve.core.strategies import strategy
from macroserve.serving.cell.scheduler import CellScheduler
from macroserve.serving.cell.server import CellServer, cell_ports

HOST = "127.0.0.1"


@pytest.mark.parametrize(
    ("cell", "ports", "expected"),
    [
        ("cell-0", range(8200, 8203), [8200, 8201, 8202]),
        ("cell-2", range(8200, 8203), [8202, 8200, 8201]),
        ("cell-103", range(8200, 8300), [*range(8203, 8300), 8200, 8201, 8202]),
        ("cell", range(8200, 8202), [8200, 8201]),
        ("cell-7", range(1), [0]),
    ],
)
def test_ports_begin_with_the_cells_number(cell: str, ports: range, expected: list[int]) -> None:
    assert cell_ports(cell, ports) == expected


def server(ports: list[int]) -> CellServer:
    scheduler = CellScheduler("cell-0", strategy("vllm"), Slo(1.0, 0.1), live())
    return CellServer(scheduler, live(), HOST, ports)


async def test_cell_whose_port_is_taken_listens_on_the_next_one() -> None:
    with socket.socket() as taken, socket.socket() as free:
        for each in (taken, free):
            each.bind((HOST, 0))
        taken.listen()
        port, other = taken.getsockname()[1], free.getsockname()[1]
        free.close()
        listening = server([port, other])
        assert await listening.start() == f"http://{HOST}:{other}"
        await listening.stop()
        with pytest.raises(OSError):
            await server([port]).start()
