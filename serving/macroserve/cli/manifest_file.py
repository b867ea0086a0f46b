"""Manifests as files: YAML in, a checked ``Manifest`` out, and what the engine needs of it."""

from pathlib import Path

import yaml

from macroserve.core.api_options import JINJA, is_template
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


def chat_template(manifest: Manifest, config_map: Path | None = None) -> str | None:
    """The text of the chat template, if the manifest names one.

    config_map: where the ConfigMap is mounted. Raises ManifestError when the file cannot be read.
    """
    api = manifest.spec.api
    if api.chat_template_config_map is not None:
        field = "spec.api.chatTemplateConfigMap"
        if config_map is None:
            raise ManifestError((f"{field} needs Kubernetes: use spec.api.chatTemplateFile.",))
        path = config_map / api.chat_template_config_map.key
    elif api.chat_template_file is not None:
        field, path = "spec.api.chatTemplateFile", Path(api.chat_template_file).expanduser()
    else:
        return api.chat_template
    try:
        text = path.read_text()
    except OSError as error:
        problem = f"{field}: {path} cannot be read: {error.strerror}."
        raise ManifestError((problem,)) from error
    except UnicodeDecodeError as error:
        raise ManifestError((f"{field}: {path} is not a text file.",)) from error
    if not is_template(text):
        raise ManifestError((f"{field}: {path} must be {JINJA}.",))
    return text


def engine_settings(manifest: Manifest, model: str, template: str | None = None) -> EngineSettings:
    """template: the chat template's text, which ingresses need."""
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
        api={
            **manifest.spec.api.frontend_options(),
            "served_model_name": list(manifest.served_names),
            "chat_template": template,
        },
    )
