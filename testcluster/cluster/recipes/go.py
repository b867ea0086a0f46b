"""Debian's Go."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from cluster.processes import run


class Go:
    """A Go tool chain that reads no module and no network: Debian's way, by GOPATH."""

    def __init__(self, root: Path, path: Path, cache: Path) -> None:
        self._command = str(root / "bin" / "go")
        self._environment = {
            "CGO_ENABLED": "0",
            "GO111MODULE": "off",
            "GOCACHE": str(cache),
            "GOFLAGS": "",
            # The compiler spends a quarter of its time on garbage otherwise, and has no need to.
            "GOGC": "off",
            "GOMEMLIMIT": "2GiB",
            "GOPATH": str(path),
            "GOPROXY": "off",
            "GOROOT": str(root),
            "GOTOOLCHAIN": "local",
        }

    def build(
        self,
        *packages: str,
        output: str,
        directory: Path,
        tags: str = "",
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """`variables` are set in the binary: `package.name` → value."""
        set_variables = [f"-X {name}={value}" for name, value in (variables or {}).items()]
        flags = " ".join(["-s -w", *set_variables])
        run(
            *(self._command, "build", "-trimpath", "-tags", tags, "-ldflags", flags),
            # What debuggers read takes time to write, and is left out in the end.
            *("-gcflags=all=-dwarf=false", "-o", output, *packages),
            directory=directory,
            environment=self._environment,
        )

    def run(self, command: Sequence[str], directory: Path) -> None:
        """Run a program that reads the tool chain's settings."""
        run(*command, directory=directory, environment=self._environment)
