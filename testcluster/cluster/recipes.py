"""The recipes make each binary of a test cluster from Debian's packages, without root.

Kubernetes 1.20.2 is Debian's own source package, built by Debian's Go; of its programs, Debian
itself builds kubectl alone. Its API server is too old
for CEL rules in CRDs, so the CRD server (Kubernetes' apiextensions-apiserver) is a newer one, of
Debian's library packages. What carries a daemon is unpacked, not installed: no package starts
anything or listens.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from cluster.debian import Suite
from cluster.errors import ClusterError

KUBERNETES = "v1.20.2"
_COMMANDS = (
    "kube-apiserver",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
    "kubelet",
)
_UNPACKED = {
    "etcd": "usr/bin/etcd",
    "containerd": "usr/bin/containerd",
    "containerd-shim-runc-v2": "usr/bin/containerd-shim-runc-v2",
    "ctr": "usr/bin/ctr",
    "runc": "usr/sbin/runc",
    "prometheus": "usr/bin/prometheus",
    "promtool": "usr/bin/promtool",
    "alertmanager": "usr/bin/prometheus-alertmanager",
    "amtool": "usr/bin/amtool",
    "busybox": "usr/bin/busybox",
    "kubectl": "usr/bin/kubectl",
    **{f"cni/{plugin}": f"usr/lib/cni/{plugin}" for plugin in ("bridge", "host-local", "loopback")},
}
PAUSE = Path(__file__).parent / "files" / "pause.go"
_INSTALLED_TEMPLATES = b"/usr/share/prometheus/alertmanager"
_TEMPLATES = b"./" * 6 + b"alertmanager-templates"
"""As long, so that it can take that one's place in a program."""


def unpack_debian(bookworm: Suite, target: Path) -> None:
    """etcd, containerd, runc, CNI plugins, kubectl, Prometheus, Alertmanager, busybox; Go to build
    with."""
    bookworm.unpack(
        *("etcd-server", "containerd", "runc", "containernetworking-plugins", "busybox-static"),
        *("kubernetes-client", "prometheus", "prometheus-alertmanager"),
        *("golang-1.19-go", "golang-1.19-src", "golang-github-modern-go-reflect2-dev"),
    )
    (target / "cni").mkdir()
    for name, path in _UNPACKED.items():
        source = bookworm.root / path
        # Before Debian merged /usr, some packages had files in /bin.
        shutil.copy2(
            source if source.exists() else bookworm.root / path.removeprefix("usr/"), target / name
        )
    _take_templates(bookworm.root, target)


def _take_templates(root: Path, target: Path) -> None:
    """Debian's Alertmanager does not start without its templates, which it looks for where an
    installed package has them. This one looks in the folder from which it is started."""
    assert len(_TEMPLATES) == len(_INSTALLED_TEMPLATES)
    shutil.copytree(root / _INSTALLED_TEMPLATES.decode().lstrip("/"), target / _TEMPLATES.decode())
    program = target / "alertmanager"
    changed = program.read_bytes().replace(_INSTALLED_TEMPLATES, _TEMPLATES)
    program.write_bytes(changed)


def build_kubernetes(bookworm: Suite, folder: Path, target: Path) -> None:
    go = Go(bookworm.root / "usr/lib/go-1.19", path=folder / "go", cache=folder / "cache")
    source = folder / "go/src/k8s.io/kubernetes"
    source.mkdir(parents=True)
    run("tar", "--extract", "--strip-components=1", "-f", str(bookworm.source("kubernetes")),
        directory=source)  # fmt: skip
    # The vendored reflect2 1.0.1 does not build with Go >= 1.18; Debian's 1.0.2 does.
    vendored = source / "vendor/github.com/modern-go/reflect2"
    shutil.rmtree(vendored)
    shutil.copytree(bookworm.root / "usr/share/gocode/src/github.com/modern-go/reflect2", vendored)
    _collect_soon(source / "pkg/kubelet/kubelet.go")
    _generate_openapi(go, source, folder)
    version = {
        "gitVersion": KUBERNETES,
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


def _collect_soon(path: Path) -> None:
    """A kubelet of this version deletes many a pod only after its collector has taken the sandbox,
    once a minute. Later ones take it at once."""
    written = "ContainerGCPeriod = time.Minute"
    text = path.read_text()
    if written not in text:
        raise ClusterError(f"{path} does not have {written!r}")
    path.write_text(text.replace(written, "ContainerGCPeriod = 2 * time.Second"))


def build_crd_server(sid: Suite, folder: Path, target: Path) -> str:
    """Returns its Kubernetes version, such as v1.36.2."""
    folder.mkdir()
    package = "golang-k8s-apiextensions-apiserver-dev"
    sid.unpack_with_dependencies(package, "golang-go")
    found = re.match(r"0\.(\d+)\.(\d+)", sid.version(package))
    if found is None:
        raise ClusterError(f"{package} has the version {sid.version(package)}, not 0.minor.patch")
    minor, patch = found.groups()
    version = f"v1.{minor}.{patch}"
    path = sid.root / "usr/share/gocode"
    _describe_crds(path / "src/k8s.io/apiextensions-apiserver/pkg/cmd/server/options/options.go")
    go = Go((sid.root / "usr/lib/go").resolve(), path=path, cache=folder / "cache")
    names = {"gitVersion": version, "gitMajor": "1", "gitMinor": minor}
    go.build(
        "k8s.io/apiextensions-apiserver",
        output=str(target / "apiextensions-apiserver"),
        variables={
            f"k8s.io/{module}/version.{name}": value
            for module in ("component-base", "client-go/pkg")
            for name, value in names.items()
        },
        directory=folder,
    )
    return version


def build_pause(bookworm: Suite, folder: Path, target: Path) -> None:
    go = Go(bookworm.root / "usr/lib/go-1.19", path=folder / "go", cache=folder / "cache")
    go.build(str(PAUSE), output=str(target / "pause"), directory=PAUSE.parent)


class Go:
    """A Go tool chain that reads no module and no network: Debian's way, by GOPATH."""

    def __init__(self, root: Path, path: Path, cache: Path) -> None:
        self._command = str(root / "bin" / "go")
        self._environment = {
            "CGO_ENABLED": "0",
            "GO111MODULE": "off",
            "GOCACHE": str(cache),
            "GOFLAGS": "",
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


def run(*command: str, directory: Path, environment: Mapping[str, str] | None = None) -> None:
    settings = {**os.environ, **environment} if environment else None
    ended = subprocess.run(
        command, cwd=directory, env=settings, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )  # fmt: skip
    if ended.returncode:
        raise ClusterError(f"{command[0]} {command[1]} failed:\n{ended.stdout[-4000:]}")
