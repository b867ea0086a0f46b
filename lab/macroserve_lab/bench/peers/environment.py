"""The environment of the peers' routers and frontends, created by ``make peers``."""

from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

from macroserve.local.user_folders import cache_folder

PACKAGES = ("vllm-router", "ai-dynamo")


class MissingEnvironmentError(Exception):
    """A missing or incomplete environment; the message is for users."""


@dataclass(frozen=True, slots=True)
class PeersEnvironment:
    """A folder of Python's ``venv``; the engines run in Macroserve's environment."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def router(self) -> Path:
        return self.folder / "bin" / "vllm-router"

    @property
    def site(self) -> Path:
        """Return the folder with the environment's packages."""
        return next(self.folder.glob("lib/python3*/site-packages"), self.folder / "lib")

    def versions(self) -> dict[str, str]:
        """Return the versions of the peers' packages.

        Raises MissingEnvironmentError where one of them is not installed.
        """
        found = {each.name: each.version for each in distributions(path=[str(self.site)])}
        if missing := [name for name in PACKAGES if name not in found]:
            raise MissingEnvironmentError(
                f"{self.folder} lacks {' and '.join(missing)}: run `make peers` first"
            )
        return {name: found[name] for name in PACKAGES}


def peers_environment() -> PeersEnvironment:
    """Return the environment in the user's cache folder, which need not exist."""
    return PeersEnvironment(cache_folder() / "peers")
