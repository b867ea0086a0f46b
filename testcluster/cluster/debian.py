"""Packages of any Debian suite, unpacked into a folder: nothing is installed, root is not needed.

apt gets a state of its own below the folder. The mirror is the one that this machine uses.
"""

import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cluster.errors import ClusterError
from cluster.processes import run

_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


class Suite:
    """A suite (`bookworm`, `sid`) of the machine's mirror, with `folder` for all its files."""

    def __init__(self, name: str, folder: Path) -> None:
        self.root = folder / "root"
        """Where packages are unpacked, as if it were `/`."""
        self._archives = folder / "cache" / "archives"
        for path in (self.root, self._archives / "partial", folder / "lists" / "partial"):
            path.mkdir(parents=True)
        status, sources = folder / "status", folder / "sources.list"
        status.touch()
        where = f"[signed-by={_KEYRING}] {_mirror()} {name} main"
        sources.write_text(f"deb {where}\ndeb-src {where}\n")
        self._options = [
            f"-oDir::Etc::SourceList={sources}",
            "-oDir::Etc::SourceParts=/dev/null",
            f"-oDir::State::Lists={folder / 'lists'}",
            f"-oDir::State::status={status}",
            f"-oDir::Cache={folder / 'cache'}",
            "-oAPT::Sandbox::User=",
            "-oAcquire::Languages=none",
        ]
        self._apt("update")

    def unpack(self, *packages: str) -> None:
        """Unpack these packages without their dependencies."""
        self._apt("download", *packages)
        self._unpack_archives()

    def unpack_with_dependencies(self, *packages: str, without: Sequence[str] = ()) -> None:
        """Unpack these packages and all that they depend on. `without`: how the names of
        dependencies begin that are of no use here."""
        self._apt("install", "--yes", "--no-install-recommends", "--download-only", *packages)
        self._unpack_archives(without)

    def source(self, package: str) -> Path:
        """The upstream's tar file of a source package."""
        self._apt("source", "--download-only", package)
        (tar,) = self._archives.glob(f"{package}_*.orig.tar.*")
        return tar

    def version(self, package: str) -> str:
        """Return the version of an unpacked package."""
        (archive,) = self._archives.glob(f"{package}_*.deb")
        return run("dpkg-deb", "--field", str(archive), "Version").strip()

    def _unpack_archives(self, without: Sequence[str] = ()) -> None:
        archives = [
            archive
            for archive in self._archives.glob("*.deb")
            if not archive.name.startswith(tuple(without))
        ]

        def extract(archive: Path) -> None:
            run("dpkg-deb", "--extract", str(archive), str(self.root))

        # Unpacking keeps one core busy.
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            list(threads.map(extract, archives))

    def _apt(self, *arguments: str) -> None:
        run("apt-get", *self._options, "--quiet", *arguments, directory=self._archives)


def _mirror() -> str:
    """Return the mirror of the machine's own sources, which may have either of apt's formats."""
    listing = run("apt-get", "--print-uris", "update")
    found = re.search(r"^'(\S+)/dists/[a-z]+/InRelease'", listing, re.MULTILINE)
    if found is None:
        raise ClusterError("apt knows no Debian mirror on this machine")
    return found.group(1)
