"""Instances may share a cache of weights and compiled code, so that later ones start sooner."""

from pathlib import PurePosixPath
from typing import Annotated

from pydantic import AfterValidator, Field

from macroserve.api.api_options import DNS_NAME, NOT_EMPTY, DnsName
from macroserve.api.part import Part

HOST_PATH = "an absolute path without .. of a folder other than the root"
MAX_PATH_CHARS = 4096
ONE_SOURCE = "a mapping with one of claim, hostPath, image"


def _absolute(path: str) -> str:
    parts = PurePosixPath(path)
    is_folder = parts.is_absolute() and parts.name and ".." not in parts.parts
    if not is_folder or "\0" in path or len(path) > MAX_PATH_CHARS:
        raise ValueError
    return path


class ModelCache(Part):
    """The cache is a volume of all instances' pods, on Kubernetes. Exactly one of ``claim``,
    ``host_path`` and ``image`` is set."""

    claim: DnsName | None = Field(default=None, description=DNS_NAME)
    """Name of a PersistentVolumeClaim in the MacroInstance's namespace."""
    host_path: Annotated[str, AfterValidator(_absolute)] | None = Field(
        default=None, description=HOST_PATH
    )
    """Folder of each node."""
    image: Annotated[str, Field(min_length=1)] | None = Field(default=None, description=NOT_EMPTY)
    """Image with a cache, which cannot be written."""
    read_only: bool = Field(default=False, description="true or false")
    """The flag lets instances use the volume as it is, without the hub."""

    @property
    def writable(self) -> bool:
        """Return whether instances add to the cache."""
        return self.image is None and not self.read_only


def with_one_source(cache: ModelCache | None) -> ModelCache | None:
    """Return the cache. Raises ValueError if it has no source, or several."""
    if cache and [cache.claim, cache.host_path, cache.image].count(None) != 2:
        raise ValueError
    return cache
