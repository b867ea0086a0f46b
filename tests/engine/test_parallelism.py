"""An instance is divided at most by its devices and its model's layers."""

import pytest

from macroserve.engine.parallelism import check_devices, check_layers


@pytest.mark.parametrize(
    ("tensor_parallel", "pipeline_parallel", "num_devices", "fits"),
    [(1, 1, 1, True), (2, 2, 4, True), (2, 2, 3, False), (4, 1, 2, False), (1, 1, 0, False)],
)
def test_workers_have_a_device_each(
    tensor_parallel: int, pipeline_parallel: int, num_devices: int, fits: bool
) -> None:
    if fits:
        check_devices(tensor_parallel, pipeline_parallel, num_devices)
        return
    says = f"times pipelineParallel is {tensor_parallel * pipeline_parallel}, .* is {num_devices}$"
    with pytest.raises(ValueError, match=says):
        check_devices(tensor_parallel, pipeline_parallel, num_devices)


def test_stages_have_a_layer_each() -> None:
    check_layers(4, 4)
    with pytest.raises(ValueError, match=r"pipelineParallel is 5, .* the model, which is 4$"):
        check_layers(5, 4)
