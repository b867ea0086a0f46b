"""A heap of imported modules that no garbage collection examines."""

import gc
from collections.abc import Iterator
from unittest.mock import patch

import pytest


@pytest.fixture(scope="session", autouse=True)
def frozen_heap() -> Iterator[None]:
    """Exclude imported modules from garbage collections for all tests of a session.

    vLLM collects a dozen times per engine that it starts and stops, and freezes and unfreezes the
    heap in between. With vLLM and PyTorch imported that takes ten times as long as the rest.
    """
    gc.collect()
    gc.freeze()
    with patch.object(gc, "freeze", lambda: None), patch.object(gc, "unfreeze", lambda: None):
        yield
    gc.unfreeze()
