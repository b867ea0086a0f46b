"""A GPU's warm-up fills the largest batch, and an ingress takes no GPU."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from macroserve.engine.vllm.environment import prepare_environment, prepare_frontend

prepare_environment()

from macroserve.engine.vllm.engine import largest_batch  # noqa: E402


@given(st.integers(1, 16384), st.integers(3, 131072))
def test_largest_batch_has_no_room_for_a_prompt_more(max_batch_tokens, max_model_len):
    count, num_tokens, num_outputs = largest_batch(max_batch_tokens, max_model_len)
    assert num_tokens + num_outputs <= max_model_len
    assert count * num_tokens <= max_batch_tokens < (count + 1) * num_tokens


@pytest.mark.parametrize("device", [None, "cuda"])
def test_frontend_is_prepared_without_a_device(monkeypatch, device):
    monkeypatch.delenv("VLLM_TARGET_DEVICE", raising=False)
    if device:
        monkeypatch.setenv("VLLM_TARGET_DEVICE", device)
    prepare_frontend()
    assert os.environ["VLLM_TARGET_DEVICE"] == "cpu"
