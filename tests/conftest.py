"""The fixtures and hooks here apply to every test."""

import logging
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says more about the machine's other work than about the code.
UNTIMED = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("quick", max_examples=30, **UNTIMED)
settings.register_profile("thorough", max_examples=200, **UNTIMED)
settings.load_profile("quick")


@pytest.fixture(autouse=True)
def logs_stay_as_they_are() -> Iterator[None]:
    """Undo what a test configures of this process's logs, as ``macroserve run`` does: later tests
    would get records that they do not expect, and write to the closed stream of a former one."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers = handlers
    root.setLevel(level)
