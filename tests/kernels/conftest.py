"""Kernels run on a GPU if there is one, else in Triton's interpreter."""

import os
import sys

import pytest
import torch

# Triton decides when it is imported whether it interprets, and engines want it compiled.
IS_TOO_LATE = "triton" in sys.modules and not torch.cuda.is_available()
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture
def device() -> torch.device:
    if IS_TOO_LATE:
        pytest.skip("other tests have imported Triton: `pytest tests/kernels` runs these")
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
