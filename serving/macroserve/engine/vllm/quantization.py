"""Errors of vLLM with quantized weights, which name the manifest's field.

vLLM chooses kernels layer by layer, so most unsupported combinations of device and quantization
fail at the start, with a message about a kernel.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from macroserve.engine.json_file import json_object
from macroserve.engine.settings import EngineSettings


@contextmanager
def naming_quantization(settings: EngineSettings) -> Iterator[None]:
    """Convert errors of vLLM with quantized weights to RuntimeError with the field's name;
    Macroserve's own ValueErrors already have one."""
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
    """Return which field requests which quantization; None without quantization, or for weights on
    the hub."""
    if method := settings.args.get("quantization"):
        return f"spec.engine.args.quantization is {method}"
    try:
        config = json_object(Path(settings.model) / "config.json")
        method = config["quantization_config"]["quant_method"]
    except (ValueError, LookupError, TypeError):
        return None
    return f"spec.model.source has weights that are quantized by {method}"
