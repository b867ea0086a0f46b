"""``spec.model.cache``: weights and compiled code shared by instances, for quicker starts."""

from pathlib import PurePosixPath
from typing import Annotated

from pydantic import AfterValidator, Field

from macroserve.api.api_options import DNS_NAME, NOT_EMPTY, DnsName
from macroserve.api.part import ManifestPart

HOST_PATH = "an absolute path without .. of a folder other than the root"
MAX_PATH_CHARS = 4096
ONE_SOURCE = "a mapping with one of claim, hostPath, image"


def _absolute(path: str) -> str:
    parts = PurePosixPath(path)
    is_folder = parts.is_absolute() and parts.name and ".." not in parts.parts
    if not is_folder or "\0" in path or len(path) > MAX_PATH_CHARS:
        raise ValueError
    return path


class ModelCache(ManifestPart):
    """A volume of all instances' pods, with one source: ``claim``, ``host_path`` or ``image``."""

    claim: DnsName | None = Field(default=None, description=DNS_NAME)
    """Name of a PersistentVolumeClaim in the MacroInstance's namespace."""
    host_path: Annotated[str, AfterValidator(_absolute)] | None = Field(
        default=None, description=HOST_PATH
    )
    """Folder on each node."""
    image: Annotated[str, Field(min_length=1)] | None = Field(default=None, description=NOT_EMPTY)
    """Image with a cache, always read-only."""
    read_only: bool = Field(default=False, description="true or false")
    """Whether instances use the volume as it is, without the hub."""

    @property
    def writable(self) -> bool:
        """Return whether instances add to the cache."""
        return self.image is None and not self.read_only


def with_one_source(cache: ModelCache | None) -> ModelCache | None:
    """Return the cache. Raises ValueError unless it has exactly one source."""
    if cache and [cache.claim, cache.host_path, cache.image].count(None) != 2:
        raise ValueError
    return cache
