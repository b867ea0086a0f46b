"""Manifest files: YAML in, a checked ``Manifest`` and the engine's settings out."""

import asyncio
import os
import stat
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from yaml.constructor import ConstructorError

from macroserve.api.api_options import JINJA, is_template
from macroserve.api.manifest import TINY, Manifest, ManifestError, parse
from macroserve.engine.jinja import problem_of
from macroserve.engine.settings import EngineSettings
from macroserve.engine.vllm.version import installed_version, problems

MAX_BYTES = 1 << 20
"""Largest size of a manifest; Kubernetes accepts no larger resource."""
MAX_NODES = 20_000
"""Most scalars, lists and mappings of a manifest, including repetitions by aliases. A whole pod
template has some hundreds."""
POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class Saved:
    """A manifest file as last saved; two are equal unless the file was saved in between."""

    text: str
    inode: int
    mtime_ns: int


def load(path: Path) -> Manifest:
    """Read and check a manifest. Raises ManifestError if the file is missing or invalid."""
    return loads(read(path).text, str(path))


def load_document(path: Path) -> Any:
    """Return the file's plain data, unchecked against the schema. Raises ManifestError."""
    return _document(read(path).text, str(path))


def read(path: Path) -> Saved:
    """Read a manifest file. Raises ManifestError unless it is text of up to ``MAX_BYTES``."""
    try:
        # O_NONBLOCK: refuse a FIFO without a writer instead of waiting for it.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise ManifestError((f"{path} is not a regular file.",))
            content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        if isinstance(error, ManifestError):
            raise
        why = getattr(error, "strerror", None) or error
        raise ManifestError((f"{path} cannot be read: {why}.",)) from error
    if len(content) > MAX_BYTES:
        raise ManifestError((f"{path} has more than {MAX_BYTES} bytes.",))
    try:
        return Saved(content.decode(), found.st_ino, found.st_mtime_ns)
    except UnicodeDecodeError as error:
        raise ManifestError((f"{path} is not a text file.",)) from error


async def saves(
    path: Path, known: Saved, poll_s: float = POLL_S
) -> AsyncIterator[Saved | ManifestError]:
    """Yield the saves after ``known``, without end: in place, by a rename, through links.

    The path is polled, because a watch holds an inode or a folder, and editors, ``git checkout``
    and ConfigMaps replace both. A save is yielded once two polls agree, to skip half-written files.
    An unreadable file counts as a save.
    """

    def found_now() -> Saved | ManifestError:
        try:
            return read(path)
        except ManifestError as error:
            return error

    last: Saved | str = known
    candidate: Saved | str = known
    while True:
        await asyncio.sleep(poll_s)
        found = await asyncio.to_thread(found_now)
        seen = str(found) if isinstance(found, ManifestError) else found
        if seen == candidate != last:
            last = seen
            yield found
        candidate = seen


def loads(text: str, origin: str, rehearse: str | None = None) -> Manifest:
    """Check a manifest in YAML. Raises only ManifestError, for any bad text.

    rehearse: device that replaces ``spec.engine.rehearse``.
    """
    document = _document(text, origin)
    try:
        if rehearse is not None:
            document["spec"]["engine"]["rehearse"] = rehearse
    except (KeyError, TypeError):
        pass  # the checks tell which part is missing
    try:
        return parse(document)
    except ManifestError:
        raise
    except Exception as error:
        raise ManifestError((f"{origin} cannot be used: {_problem(error)}.",)) from error


def _document(text: str, origin: str) -> Any:
    if len(text.encode(errors="replace")) > MAX_BYTES:
        raise ManifestError((f"{origin} has more than {MAX_BYTES} bytes.",))
    try:
        loader = _Loader(text)
        try:
            return loader.document()
        finally:
            loader.dispose()
    except RecursionError as error:
        raise ManifestError((f"{origin} is not YAML: it is nested too deeply.",)) from error
    except Exception as error:
        # In addition to YAMLError, the parser raises the errors of Python's own types.
        where = getattr(error, "problem_mark", None)
        line = f", line {where.line + 1}" if where else ""
        raise ManifestError((f"{origin}{line} is not YAML: {_problem(error)}.",)) from error


def _problem(error: Exception) -> str:
    problem = getattr(error, "problem", None) or getattr(error, "reason", None)
    return " ".join(str(problem or "it cannot be parsed").split())[:200]


class _Loader(yaml.SafeLoader):
    """A loader whose scalar errors have a line, and that limits repetitions by aliases."""

    def document(self) -> Any:
        node = self.get_single_node()
        if node is None:
            return None
        _check_size(node)
        return self.construct_document(node)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (yaml.YAMLError, RecursionError):
            raise
        except Exception as error:
            kind = node.tag.rpartition(":")[2]
            problem = f"{str(node.value)[:60]!r} is not a valid {kind}"
            raise ConstructorError(problem=problem, problem_mark=node.start_mark) from error


def _check_size(root: yaml.Node) -> None:
    """Raise ConstructorError for a node that contains itself or is too large with its aliases."""
    sizes: dict[int, int] = {}
    open_nodes: set[int] = set()

    def size(node: Any) -> int:
        if isinstance(node, yaml.ScalarNode):
            return 1
        key = id(node)
        if key in open_nodes:
            problem = "an alias refers to its own parent"
            raise ConstructorError(problem=problem, problem_mark=node.start_mark)
        if key not in sizes:
            open_nodes.add(key)
            pairs = isinstance(node, yaml.MappingNode)
            inner = [part for pair in node.value for part in pair] if pairs else node.value
            sizes[key] = 1 + sum(map(size, inner))
            open_nodes.discard(key)
        if sizes[key] > MAX_NODES:
            problem = f"it has more than {MAX_NODES} values, including aliases"
            raise ConstructorError(problem=problem, problem_mark=node.start_mark)
        return sizes[key]

    size(root)


def model_folder(manifest: Manifest) -> str:
    """Return the folder of the checkpoint, after creating the built-in one.

    Raises ManifestError for a local folder without a checkpoint.
    """
    source = manifest.spec.model.source
    if source == TINY:
        from macroserve.local.tiny_model import ensure_tiny_model

        return str(ensure_tiny_model())
    path = local_path(source, "spec.model.source")
    if path and not (path / "config.json").is_file():
        raise ManifestError(
            (f"spec.model.source is {source!r}, which contains no checkpoint (config.json).",)
        )
    return str(path or source)


def local_path(source: str, field: str) -> Path | None:
    """Return the folder that a source names; None for a name on the hub."""
    return _expanded(source, field) if source.startswith((".", "/", "~")) else None


def chat_template(manifest: Manifest, folder: Path, config_map: Path | None = None) -> str | None:
    """Return the text of the chat template, if the manifest names one.

    folder: the manifest's folder, for relative paths.
    config_map: folder in which the ConfigMap is mounted.

    Raises ManifestError for unreadable files and invalid templates.
    """
    field, text = _template_text(manifest, folder, config_map)
    if text is not None and (problem := problem_of(text)):
        raise ManifestError((f"{field} is not a Jinja template: {problem.rstrip('.')}.",))
    return text


def _template_text(
    manifest: Manifest, folder: Path, config_map: Path | None
) -> tuple[str, str | None]:
    """Return the field of the template, and its text."""
    api = manifest.spec.api
    if api.chat_template_config_map is not None:
        field = "spec.api.chatTemplateConfigMap"
        if config_map is None:
            raise ManifestError((f"{field} needs Kubernetes: use spec.api.chatTemplateFile.",))
        path = config_map / api.chat_template_config_map.key
    elif api.chat_template_file is not None:
        field = "spec.api.chatTemplateFile"
        path = folder / _expanded(api.chat_template_file, field)
    else:
        return "spec.api.chatTemplate", api.chat_template
    try:
        text = path.read_text()
    except OSError as error:
        problem = f"{field}: {path} cannot be read: {error.strerror}."
        raise ManifestError((problem,)) from error
    except UnicodeDecodeError as error:
        raise ManifestError((f"{field}: {path} is not a text file.",)) from error
    if not is_template(text):
        raise ManifestError((f"{field}: {path} must be {JINJA}.",))
    return f"{field}: {path}", text


def _expanded(path: str, field: str) -> Path:
    """Expand ``~`` in a path. Raises ManifestError for the ``~`` of an unknown user."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ManifestError(
            (f"{field} is {path!r}, but this home folder does not exist.",)
        ) from error


def engine_settings(manifest: Manifest, model: str, template: str | None = None) -> EngineSettings:
    """Return the engine's settings for a manifest.

    template: text of the chat template, which ingresses need.

    Raises ManifestError for settings that the installed vLLM does not have.
    """
    engine = manifest.spec.engine
    settings = EngineSettings(
        model=model,
        served_name=manifest.served_name,
        max_model_len=manifest.spec.model.max_model_len,
        strategy=manifest.strategy.name,
        slo=manifest.slo,
        slo_classes=manifest.slo_classes,
        takes_request_targets=manifest.spec.slo.allow_request_targets,
        ordering=manifest.spec.scheduling.ordering,
        drop_late=manifest.spec.scheduling.drop_late,
        max_late_wait_s=manifest.spec.scheduling.max_late_wait_s,
        tuning=manifest.spec.scheduling.tuning.tuning,
        max_queue_wait_s=manifest.spec.scheduling.max_queue_wait_s,
        emulated=engine.type == "Emulated",
        rehearse=engine.rehearse,
        tensor_parallel=engine.tensor_parallel,
        pipeline_parallel=engine.pipeline_parallel,
        hybrid_cache=engine.hybrid_cache,
        prefix_caching=engine.prefix_caching,
        dtype=engine.dtype,
        block_size=engine.block_size,
        kv_cache_bytes=engine.kv_cache_bytes,
        host_cache_bytes=engine.host_cache_bytes,
        max_num_seqs=engine.max_num_seqs,
        max_batch_tokens=engine.max_batch_tokens,
        adapters={
            adapter.name: str(local_path(adapter.source, "spec.model.adapters") or adapter.source)
            for adapter in manifest.spec.model.adapters
        },
        args=dict(engine.args),
        api={
            **manifest.spec.api.frontend_options(),
            "served_model_name": list(manifest.served_names),
            "chat_template": template,
        },
    )
    if found := problems(settings, installed_version()):
        raise ManifestError(found)
    return settings
