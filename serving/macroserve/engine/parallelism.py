"""Limits on an instance's parallelism by its devices and layers."""


def check_devices(tensor_parallel: int, pipeline_parallel: int, num_devices: int) -> None:
    """Raise ValueError for an instance with more workers than devices."""
    num_workers = tensor_parallel * pipeline_parallel
    if num_workers > num_devices:
        raise ValueError(
            f"spec.engine.tensorParallel times pipelineParallel is {num_workers}, must be at most "
            f"the number of GPUs here, which is {num_devices}"
        )


def check_layers(pipeline_parallel: int, num_layers: int) -> None:
    """Raise ValueError for a pipeline with more stages than layers."""
    if pipeline_parallel > num_layers:
        raise ValueError(
            f"spec.engine.pipelineParallel is {pipeline_parallel}, must be at most the number of "
            f"layers of the model, which is {num_layers}"
        )
