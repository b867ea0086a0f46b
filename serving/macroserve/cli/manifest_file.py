"""Manifests as files: YAML in, a checked ``Manifest`` out, and what the engine needs of it."""

from pathlib import Path

import yaml

from macroserve.core.manifest import TINY, Manifest, ManifestError, parse
from macroserve.engine.settings import EngineSettings


def load(path: Path) -> Manifest:
    """Raises ManifestError for a file that is not there, not YAML, or not a good manifest."""
    try:
        text = path.read_text()
    except OSError as error:
        raise ManifestError((f"{path} cannot be read: {error.strerror}.",)) from error
    except UnicodeDecodeError as error:
        raise ManifestError((f"{path} is not a text file.",)) from error
    return loads(text, str(path))


def loads(text: str, origin: str) -> Manifest:
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f", line {where.line + 1}" if where else ""
        problem = getattr(error, "problem", None) or "it cannot be parsed"
        raise ManifestError((f"{origin}{line} is not YAML: {problem}.",)) from error
    return parse(document)


def model_folder(manifest: Manifest) -> str:
    """The checkpoint to load; makes the built-in one if that is asked for.

    Raises ManifestError when a local folder is named that is no checkpoint.
    """
    source = manifest.spec.model.source
    if source == TINY:
        from macroserve.cli.tiny_model import ensure_tiny_model

        return str(ensure_tiny_model())
    path = Path(source).expanduser()
    is_local = source.startswith((".", "/", "~"))
    if is_local and not (path / "config.json").is_file():
        raise ManifestError(
            (f"spec.model.source is {source!r}, but there is no checkpoint (config.json) there.",)
        )
    return str(path) if is_local else source


def engine_settings(manifest: Manifest, model: str) -> EngineSettings:
    engine = manifest.spec.engine
    return EngineSettings(
        model=model,
        served_name=manifest.served_name,
        max_model_len=manifest.spec.model.max_model_len,
        strategy=manifest.strategy.name,
        slo=manifest.slo,
        drop_late=manifest.spec.scheduling.drop_late,
        emulated=engine.type == "Emulated",
        tensor_parallel=engine.tensor_parallel,
        pipeline_parallel=engine.pipeline_parallel,
        hybrid_cache=engine.hybrid_cache,
        dtype=engine.dtype,
        block_size=engine.block_size,
        kv_cache_bytes=engine.kv_cache_bytes,
        max_num_seqs=engine.max_num_seqs,
        max_batch_tokens=engine.max_batch_tokens,
        args=dict(engine.args),
    )
