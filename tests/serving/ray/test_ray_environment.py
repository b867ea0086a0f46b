"""Ray gets its settings before it is imported."""

import os

import pytest

from macroserve.serving.ray.environment import prepare_environment

MONITOR = "RAY_memory_monitor_refresh_ms"


def test_ray_leaves_memory_to_the_operating_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MONITOR, raising=False)
    prepare_environment()
    assert os.environ[MONITOR] == "0"


def test_environment_set_by_a_person_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MONITOR, "250")
    prepare_environment()
    assert os.environ[MONITOR] == "250"
