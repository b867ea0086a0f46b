"""Folders in which this process keeps weights and compiled code, by its environment."""

import os
from pathlib import Path

from huggingface_hub import constants

from macroserve.api.manifest import TINY, Manifest
from macroserve.local.manifest_file import local_path
from macroserve.local.user_folders import cache_folder


def hub_names(manifest: Manifest) -> tuple[str, ...]:
    """Return the Hugging Face names that an instance loads, the model first.

    There are none for an emulated engine.
    """
    model = manifest.spec.model
    if manifest.spec.engine.type == "Emulated":
        return ()
    sources = [] if model.source == TINY else [(model.source, "spec.model.source")]
    sources += [(adapter.source, "spec.model.adapters") for adapter in model.adapters]
    return tuple(source for source, field in sources if local_path(source, field) is None)


def cache_folders(manifest: Manifest) -> tuple[Path, ...]:
    """Return the folders, perhaps absent, to which an instance's start adds files.

    They hold checkpoints from the hub, the built-in model, and code of torch.compile and Triton.
    Raises FileNotFoundError for a user without a home folder.
    """
    caches = cache_folder().parent
    compiled = Path(os.environ.get("VLLM_CACHE_ROOT") or caches / "vllm") / "torch_compile_cache"
    triton = os.environ.get("TRITON_CACHE_DIR") or Path.home() / ".triton" / "cache"
    hub = Path(constants.HF_HUB_CACHE)
    return (
        *(hub / f"models--{name.replace('/', '--')}" / "blobs" for name in hub_names(manifest)),
        cache_folder() / "models",
        compiled,
        compiled / "torch_aot_compile",
        Path(triton),
    )
