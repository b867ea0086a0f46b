"""Kubernetes 1.20.2, the newest that Debian has the source of, and the pause container's program.

Of its programs Debian itself builds kubectl alone; Debian's Go builds the others here.
"""

import re
import shutil
from pathlib import Path

from cluster.debian import Suite
from cluster.errors import ClusterError
from cluster.processes import run
from cluster.recipes.go import Go

VERSION = "v1.20.2"
PAUSE = Path(__file__).parents[1] / "files" / "pause.go"
_GO = ("golang-1.19-go", "golang-1.19-src", "golang-github-modern-go-reflect2-dev")
_COMMANDS = (
    "kube-apiserver",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
    "kubelet",
)


def make(scratch: Path, target: Path) -> dict[str, str]:
    bookworm = Suite("bookworm", scratch / "bookworm")
    bookworm.unpack(*_GO)
    go = Go(bookworm.root / "usr/lib/go-1.19", path=scratch / "go", cache=scratch / "cache")
    source = scratch / "go/src/k8s.io/kubernetes"
    source.mkdir(parents=True)
    run("tar", "--extract", "--strip-components=1", "-f", str(bookworm.source("kubernetes")),
        directory=source)  # fmt: skip
    # The vendored reflect2 1.0.1 does not build with Go >= 1.18; Debian's 1.0.2 does.
    vendored = source / "vendor/github.com/modern-go/reflect2"
    shutil.rmtree(vendored)
    shutil.copytree(bookworm.root / "usr/share/gocode/src/github.com/modern-go/reflect2", vendored)
    _collect_soon(source / "pkg/kubelet/kubelet.go")
    _generate_openapi(go, source, scratch)
    version = {
        "gitVersion": VERSION,
        "gitMajor": "1",
        "gitMinor": "20",
        "gitTreeState": "archive",
    }
    vendor = "k8s.io/kubernetes/vendor/k8s.io"
    go.build(
        *(f"k8s.io/kubernetes/cmd/{command}" for command in _COMMANDS),
        output=f"{target}/",
        tags="dockerless,providerless",
        variables={
            f"{vendor}/{module}/version.{name}": value
            for module in ("component-base", "client-go/pkg")
            for name, value in version.items()
        },
        directory=source,
    )
    go.build(str(PAUSE), output=str(target / "pause"), directory=PAUSE.parent)
    return {"kubernetes": VERSION}


def _collect_soon(path: Path) -> None:
    """Let the kubelet's collector run every two seconds instead of once a minute: a kubelet of this
    version deletes many pods only after it has collected their sandbox. Later ones collect it at
    once."""
    written = "ContainerGCPeriod = time.Minute"
    text = path.read_text()
    if written not in text:
        raise ClusterError(f"{path} does not have {written!r}")
    path.write_text(text.replace(written, "ContainerGCPeriod = 2 * time.Second"))


def _generate_openapi(go: Go, source: Path, folder: Path) -> None:
    """Debian's source lacks this one generated file; Kubernetes' own generator writes it."""
    generator = folder / "openapi-gen"
    go.build(
        "./vendor/k8s.io/kube-openapi/cmd/openapi-gen", output=str(generator), directory=source
    )
    violations = folder / "violations"
    packages = ",".join(f"k8s.io/kubernetes/{path}" for path in _documented_packages(source))
    go.run(
        [
            *(str(generator), "--logtostderr", "-i", packages),
            *("-p", "k8s.io/kubernetes/pkg/generated/openapi", "-O", "zz_generated.openapi"),
            *("-h", "vendor/k8s.io/code-generator/hack/boilerplate.go.txt", "-r", str(violations)),
        ],
        directory=source,
    )
    expected = source / "api/api-rules/violation_exceptions.list"
    if violations.read_bytes() != expected.read_bytes():
        raise ClusterError("openapi-gen read other types than Kubernetes' makers did")


def _documented_packages(source: Path) -> list[str]:
    """The packages with types for the OpenAPI document, as paths in the source."""
    marker = re.compile(r"^// *\+k8s:openapi-gen=", re.MULTILINE)
    skipped = re.compile(r"code-generator/|sample-apiserver/|/testdata/|_test\.go$")
    found = {
        str(file.parent.relative_to(source))
        for top in ("staging/src/k8s.io", "pkg", "plugin", "cmd")
        for file in (source / top).rglob("*.go")
        if not skipped.search(str(file)) and marker.search(file.read_text())
    }
    return sorted(path.replace("staging/src/", "vendor/", 1) for path in found)
