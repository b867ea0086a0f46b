"""Download of a manifest's model into this process's caches, as in an instance's init container.

Concurrent downloads wait for each other: the Hub's client locks each file.
"""

import errno
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from macroserve.api.manifest import TINY, Manifest
from macroserve.core.backoff import Backoff
from macroserve.local.model_cache import hub_names
from macroserve.local.tiny_model import ensure_tiny_model
from macroserve.local.user_folders import cache_folder

NUM_TRIES = 5
"""After these, Kubernetes restarts the container with growing delays."""
BACKOFF = Backoff(first_s=2.0)

OTHER_FORMATS = (
    *("*.bin", "*.pt", "*.pth", "*.gguf", "*.h5", "*.msgpack", "*.onnx", "*.ot", "*.tflite"),
    *("consolidated*", "original/*"),
)
"""Files of a repository that vLLM does not load if it has safetensors."""
OLDER_WEIGHTS = ("*.bin", "*.pt")
WEIGHTS = (*OTHER_FORMATS, "*.safetensors")
"""Files that a rehearsal does not read."""

_FINAL = (GatedRepoError, HFValidationError, RepositoryNotFoundError, RevisionNotFoundError)
_FINAL_ERRNOS = (errno.EACCES, errno.EDQUOT, errno.ENOSPC, errno.EPERM, errno.EROFS)


class ModelFetchError(Exception):
    """An error whose message is a sentence: the model cannot be fetched."""


def fetch_model(manifest: Manifest, sleep: Callable[[float], None] = time.sleep) -> None:
    """Fetch the weights of the model and its adapters; build the built-in model.

    Existing files are not fetched again, and suffice while the hub does not answer. Unusual formats
    are left to the engine.

    Raises ModelFetchError after NUM_TRIES, or at once if retries would not help.
    """
    if manifest.spec.model.source == TINY and manifest.spec.engine.type != "Emulated":
        _check_writable(cache_folder())
        ensure_tiny_model()
    names = hub_names(manifest)
    if names:
        _check_writable(Path(constants.HF_HUB_CACHE))
    revision = manifest.spec.engine.args.get("revision")
    for name in names:
        is_model = name == manifest.spec.model.source
        needs_weights = not (is_model and manifest.spec.engine.rehearse)
        _fetch_patiently(name, revision if is_model else None, needs_weights, sleep)


def _fetch_patiently(
    name: str, revision: str | None, needs_weights: bool, sleep: Callable[[float], None]
) -> None:
    for failures in range(1, NUM_TRIES + 1):
        try:
            _fetch(name, revision, needs_weights)
        except Exception as error:
            # The hub, the network and the disk raise many types.
            if failures == NUM_TRIES or _is_final(error):
                cause = str(error).strip().partition("\n")[0] or type(error).__name__
                raise ModelFetchError(f"{name} cannot be fetched: {cause}") from error
        else:
            return
        sleep(BACKOFF.delay_s(failures))


def _fetch(name: str, revision: str | None, needs_weights: bool) -> None:
    ignored = list(OTHER_FORMATS if needs_weights else WEIGHTS)
    folder = snapshot_download(name, revision=revision, ignore_patterns=ignored)
    if needs_weights and not any(Path(folder).rglob("*.safetensors")):
        snapshot_download(name, revision=revision, allow_patterns=list(OLDER_WEIGHTS))


def _is_final(error: Exception) -> bool:
    return isinstance(error, _FINAL) or getattr(error, "errno", None) in _FINAL_ERRNOS


def _check_writable(folder: Path) -> None:
    """Create the folder. Raises ModelFetchError if this user cannot write to it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ModelFetchError(f"{folder} cannot be written to: {error.strerror}") from error
