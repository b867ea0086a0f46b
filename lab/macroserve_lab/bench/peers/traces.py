"""Recorded data in place of synthesized lengths."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Traces:
    """Traces by the names of their loads. Without one, a load is synthesized, or omitted
    (``servegen``)."""

    azure_conv: Path | None = None
    azure_code: Path | None = None
    prefixes: Path | None = None
    servegen: Path | None = None
    """Folder of ServeGen's clients."""
    servegen_start_s: float = 0.0
    """Time in the clients' files at which the load begins."""

    def digests(self) -> dict[str, str]:
        """Return the SHA-256 of the given traces by load."""
        files = {
            "azure_conv": self.azure_conv,
            "azure_code": self.azure_code,
            "prefixes": self.prefixes,
        }
        found = {name: _sha256([path]) for name, path in files.items() if path}
        if self.servegen:
            digest = _sha256(sorted(self.servegen.glob("chunk-*")))
            found["servegen"] = f"{digest} from {self.servegen_start_s:g} s on"
        return found


def _sha256(paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.read_bytes())
    return digest.hexdigest()
