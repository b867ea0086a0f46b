"""Adapters in folders of this machine are checked before anything starts."""

from pathlib import Path

from macroserve.api.manifest import Manifest, ManifestError
from macroserve.engine.adapter_files import check_fit, rank_of
from macroserve.local.manifest_file import local_path


def check_adapters(manifest: Manifest, model: str) -> None:
    """Check that each adapter fits the model, and its rank the engine. Raises ManifestError with a
    sentence for each that does not.

    model: folder of the checkpoint, or its name on the hub. What is on the hub is checked when an
        instance loads it. An emulated engine reads no adapters.
    """
    if manifest.spec.engine.type == "Emulated":
        return
    problems: list[str] = []
    for adapter in manifest.spec.model.adapters:
        folder = local_path(adapter.source, "spec.model.adapters")
        if folder is None:
            continue
        try:
            rank, limit = rank_of(folder), manifest.spec.engine.args.get("max_lora_rank")
            if limit is not None and rank > limit:
                raise ValueError(
                    f"its rank is {rank}, and spec.engine.args sets max_lora_rank to {limit}"
                )
            check_fit(folder, Path(model))
        except ValueError as error:
            problems.append(f"spec.model.adapters: {adapter.name} is {folder}, but {error}.")
    if problems:
        raise ManifestError(tuple(problems))
