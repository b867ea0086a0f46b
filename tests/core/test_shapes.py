"""Models and devices have valid shapes."""

from dataclasses import fields

import pytest
from support.shapes import CODELLAMA_34B, LLAMA_30B, OPT_13B

from macroserve.core.shapes import DeviceShape, ModelShape


@pytest.mark.parametrize(
    ("model", "billion_parameters", "kv_bytes"),
    [
        (LLAMA_30B, 32.5, 2 * 60 * 6656 * 2),
        (CODELLAMA_34B, 33.7, 2 * 48 * 8 * 128 * 2),
        (OPT_13B, 13.1, 2 * 40 * 5120 * 2),
    ],
)
def test_model_shapes_have_their_published_sizes(model, billion_parameters, kv_bytes):
    assert model.weight_bytes / 2e9 == pytest.approx(billion_parameters, rel=0.01)
    assert model.kv_bytes_per_token == kv_bytes


@pytest.mark.parametrize("field", ["num_layers", "head_dim", "vocab_size", "tensor_parallel"])
def test_model_shape_with_a_zero_size_is_refused(field):
    sizes = {f.name: 1 for f in fields(ModelShape)}
    with pytest.raises(ValueError, match="at least 1"):
        ModelShape(**{**sizes, field: 0})


def test_device_shape_without_bandwidth_is_refused():
    with pytest.raises(ValueError, match="positive"):
        DeviceShape(flops_per_s=1.0, bytes_per_s=0.0)
