"""A failure of vLLM with quantized weights is told with the field that asks for them.

vLLM chooses kernels layer by layer, by the device and the scheme of the weights, so that most of
what a platform cannot do shows as the engine starts, in the words of a kernel.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from macroserve.engine.json_file import json_object
from macroserve.engine.settings import EngineSettings


@contextmanager
def naming_quantization(settings: EngineSettings) -> Iterator[None]:
    """Name the field before the cause, where vLLM fails and the weights are quantized. Raises
    RuntimeError then; a ValueError of ours names its own field."""
    try:
        yield
    except Exception as error:
        is_ours = isinstance(error, ValueError) and not isinstance(error, ValidationError)
        if is_ours or (asked := _asked(settings)) is None:
            raise
        cause = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        cause = cause.removeprefix("Value error, ")
        raise RuntimeError(f"{asked}, and vLLM does not start with it: {cause}") from error


def _asked(settings: EngineSettings) -> str | None:
    """Return which field asks for which quantization; None for weights that are not quantized, or
    that are on the hub."""
    if method := settings.args.get("quantization"):
        return f"spec.engine.args.quantization is {method}"
    try:
        config = json_object(Path(settings.model) / "config.json")
        method = config["quantization_config"]["quant_method"]
    except (ValueError, LookupError, TypeError):
        return None
    return f"spec.model.source has weights that are quantized by {method}"
