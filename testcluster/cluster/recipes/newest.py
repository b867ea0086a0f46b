"""A CRD server and a decoder of the newest Kubernetes, of whose code Debian has the libraries.

Kubernetes 1.20's API server is too old for CEL rules in CRDs, so the CRD server (Kubernetes' own
apiextensions-apiserver) is built from these. So is a program that decodes objects by the newest Go
types. Both are built at once, so that each package is compiled once.
"""

import re
import shutil
from pathlib import Path

from cluster.debian import Suite
from cluster.errors import ClusterError
from cluster.recipes.go import Go

DECODER = Path(__file__).parents[1] / "files" / "decode_strictly.go"
_LIBRARIES = "golang-k8s-apiextensions-apiserver-dev"
_UNUSED = (
    "golang-github-aws-",
    "golang-google-api-",
    "golang-google-cloud-",
    "golang-golang-x-tools_",
)
"""Half of what the libraries depend on: clouds' SDKs, and programs."""
_DECODER_PACKAGE = "macroserve.io/decode-strictly"


def make(scratch: Path, target: Path) -> dict[str, str]:
    sid = Suite("sid", scratch / "sid")
    sid.unpack_with_dependencies(_LIBRARIES, "golang-go", without=_UNUSED)
    found = re.match(r"0\.(\d+)\.(\d+)", sid.version(_LIBRARIES))
    if found is None:
        raise ClusterError(
            f"{_LIBRARIES} has the version {sid.version(_LIBRARIES)}, not 0.minor.patch"
        )
    minor, patch = found.groups()
    version = f"v1.{minor}.{patch}"
    path = sid.root / "usr/share/gocode"
    _describe_crds(path / "src/k8s.io/apiextensions-apiserver/pkg/cmd/server/options/options.go")
    decoder = path / "src" / _DECODER_PACKAGE
    decoder.mkdir(parents=True)
    shutil.copy(DECODER, decoder)
    go = Go((sid.root / "usr/lib/go").resolve(), path=path, cache=scratch / "cache")
    names = {"gitVersion": version, "gitMajor": "1", "gitMinor": minor}
    go.build(
        *("k8s.io/apiextensions-apiserver", _DECODER_PACKAGE),
        output=f"{target}/",
        variables={
            f"k8s.io/{module}/version.{name}": value
            for module in ("component-base", "client-go/pkg")
            for name, value in names.items()
        },
        directory=scratch,
    )
    return {"newest types": version}


def _describe_crds(options: Path) -> None:
    """Let the CRD server write OpenAPI v2 as well, which is what an old API server (so `kubectl
    explain`) reads; without the CRDs' own API, which that server describes already."""
    changed, count = re.subn(
        r"^(\tserverConfig\.OpenAPI)V3(Config = genericapiserver\.DefaultOpenAPI)V3(Config\(.*)$",
        r"\g<0>\n\1\2\3\n"
        r'\1Config.IgnorePrefixes = []string{"/apis/apiextensions.k8s.io"}',
        options.read_text(),
        flags=re.MULTILINE,
    )
    if count != 1:
        raise ClusterError(f"{options.name} of the CRD server is not what it was")
    options.write_text(changed)
