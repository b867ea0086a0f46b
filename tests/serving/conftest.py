"""The fixtures here serve the tests of the serving package."""

import pytest


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells wait for instances' latency models, and ingresses for cells, however busy this machine
    is: a cell that answers too late has counted a request that another one gets."""
    monkeypatch.setattr("macroserve.serving.cell.scheduler.LATENCY_TIMEOUT_S", 60.0)
    monkeypatch.setattr("macroserve.serving.ingress.cell_connection.REPLY_TIMEOUT_S", 60.0)
