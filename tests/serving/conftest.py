"""Fixtures for tests of the serving package."""

import pytest


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise time-outs for busy machines: a cell that answers too late has counted a request that
    another one gets."""
    monkeypatch.setattr("macroserve.serving.cell.scheduler.LATENCY_TIMEOUT_S", 60.0)
    monkeypatch.setattr("macroserve.serving.ingress.cell_connection.REPLY_TIMEOUT_S", 60.0)
