"""Checks of LoRA adapters: folders with a configuration and weights for some modules."""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from macroserve.engine.json_file import json_object

MAX_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Allowed values of vLLM's argument ``max_lora_rank``."""

NOT_SERVED = (
    *("use_dora", "lora_bias", "alora_invocation_tokens", "layer_replication", "use_bdlora"),
    "use_qalora",
)
"""Fields of PEFT's configuration whose features vLLM does not serve (``vllm.lora.peft_helper``)."""
SERVED_MODULES = frozenset({"classifier", "score"})
"""Modules that an adapter may contain whole (``modules_to_save``)."""
SERVED_INITS = frozenset({"gaussian", "eva", "orthogonal", "mica", "lora_ga"})
"""Values of ``init_lora_weights`` whose adapters fit the original model; others have changed its
weights."""

_WEIGHT = re.compile(r"(?:base_model\.model\.)?(.+)\.lora_([AB])\.weight")


def rank_of(folder: Path) -> int:
    """Return the largest rank of an adapter's modules. Raises ValueError unless the folder contains
    a LoRA adapter that vLLM can serve."""
    config = _config(folder)
    if (kind := config.get("peft_type")) != "LORA":
        raise ValueError(f"it is not a LoRA adapter: its peft_type is {kind!r}")
    if fields := [*_not_served(config)]:
        raise ValueError(f"it has {' and '.join(fields)}, which vLLM does not serve")
    pattern = config.get("rank_pattern")
    ranks = [config.get("r"), *(pattern.values() if isinstance(pattern, dict) else ())]
    if not all(type(rank) is int and 1 <= rank <= MAX_RANKS[-1] for rank in ranks):
        raise ValueError(f"its rank is not from 1 to {MAX_RANKS[-1]}")
    return max(ranks)


def _not_served(config: Mapping[str, Any]) -> Iterator[str]:
    yield from filter(config.get, NOT_SERVED)
    modules = config.get("modules_to_save") or ()
    if not (isinstance(modules, Iterable) and SERVED_MODULES.issuperset(modules)):
        yield "modules_to_save"
    init = config.get("init_lora_weights")
    if isinstance(init, str) and init.lower() not in SERVED_INITS:
        yield f"init_lora_weights={init}"


def check_fit(folder: Path, model: Path) -> None:
    """Raise ValueError unless the model has the modules that an adapter changes, in the same sizes.

    Models on the hub, quantized models and other file formats are checked only by vLLM when it
    loads the adapter.
    """
    weights, theirs = folder / "adapter_model.safetensors", dict[str, tuple[int, ...]]()
    for file in model.glob("*.safetensors"):
        theirs |= dict(_shapes(file))
    if (
        not weights.is_file()
        or not theirs
        or "quantization_config" in json_object(model / "config.json")
    ):
        return
    # An output layer that is tied to the embeddings has no weights in the files.
    parts = {part for name in theirs for part in name.split(".")} | {"lm_head"}
    is_transposed = bool(_config(folder).get("fan_in_fan_out"))
    for name, shape in _shapes(weights):
        if not (found := _WEIGHT.fullmatch(name)):
            continue
        module, side = found.groups()
        if module.rpartition(".")[2] not in parts:
            raise ValueError(f"it has weights for {module}, which the model does not have")
        size = theirs.get(f"{module}.weight", ())
        if len(size) == len(shape) == 2:
            axis, what = (1, "inputs") if side == "A" else (0, "outputs")
            own, wanted = shape[axis], size[axis ^ is_transposed]
            if own != wanted:
                raise ValueError(
                    f"its {module} has {own} {what}, the model's {wanted}: it was made for another "
                    "model"
                )


def _config(folder: Path) -> Mapping[str, Any]:
    path = folder / "adapter_config.json"
    if not path.is_file():
        raise ValueError("it contains no adapter (adapter_config.json)")
    return json_object(path)


def _shapes(path: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the name and shape of each tensor in a safetensors file, from its header."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            for name in file.keys():  # noqa: SIM118 - it is no mapping
                yield name, tuple(file.get_slice(name).get_shape())
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path.name} is not a safetensors file") from error
