"""Kernels run on a GPU where there is one, and otherwise in Triton's interpreter."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    # Before Triton is imported, for it decides then.
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
