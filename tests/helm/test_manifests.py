"""The plain YAML equals the chart's output and fits with the kustomization."""

import base64
import runpy
import shutil
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from support.chart import NAMESPACE, ROOT, Object, render

FOLDER = ROOT / "manifests" / "operator"
MAKE = runpy.run_path(str(ROOT / "helm" / "manifests.py"))

files: Callable[[], dict[str, str]] = MAKE["files"]


def documents(name: str) -> dict[str, Object]:
    found = yaml.safe_load_all((FOLDER / name).read_text())
    return {f"{each['kind']}/{each['metadata']['name']}": each for each in found}


def test_plain_yaml_equals_what_the_chart_renders() -> None:
    """Run `make manifests` if this test fails."""
    for name, text in files().items():
        assert (FOLDER / name).read_text() == text, f"{name} is stale"


def test_plain_yaml_has_every_object_of_the_chart() -> None:
    plain = documents("operator.yaml") | documents("monitoring.yaml") | documents("release.yaml")
    helms_own = {"Pod/macroserve-test"}
    made_elsewhere = {"Secret/macroserve-operator-webhook", "Secret/macroserve-operator-alerts"}
    rendered = render(MAKE["VALUES"]).objects.keys() | render().objects.keys()
    assert plain.keys() == rendered - helms_own - made_elsewhere


def test_plain_yaml_names_neither_helm_nor_a_secret() -> None:
    for name in files():
        text = (FOLDER / name).read_text()
        assert "helm.sh" not in text
        assert "managed-by: Helm" not in text
        assert "kind: Secret" not in text


def test_kustomization_makes_the_secrets_that_the_operator_mounts() -> None:
    kustomization = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    assert kustomization["resources"] == ["namespace.yaml", "operator.yaml"]
    for resource in kustomization["resources"]:
        assert (FOLDER / resource).exists()
    made = {secret["name"] for secret in kustomization["secretGenerator"]}
    pod = documents("operator.yaml")["Deployment/macroserve-operator"]["spec"]["template"]["spec"]
    assert made == {
        volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume
    }
    assert {secret["namespace"] for secret in kustomization["secretGenerator"]} == {NAMESPACE}


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    shutil.copy(FOLDER / "secrets.sh", tmp_path)
    make_secrets(tmp_path)
    return tmp_path / "secrets"


def make_secrets(folder: Path) -> None:
    subprocess.run([folder / "secrets.sh"], check=True, capture_output=True)


def test_secret_script_writes_the_files_of_the_kustomization(secrets: Path) -> None:
    kustomization = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    read = {file for secret in kustomization["secretGenerator"] for file in secret["files"]}
    read |= set(kustomization["patchesStrategicMerge"])
    assert read == {f"secrets/{path.name}" for path in secrets.iterdir()}
    assert all(path.stat().st_mode & 0o077 == 0 for path in secrets.iterdir())


def test_secret_script_certificate_is_trusted_by_each_webhook(secrets: Path) -> None:
    patch = yaml.safe_load((secrets / "ca-bundle.yaml").read_text())
    plain = documents("operator.yaml")["ValidatingWebhookConfiguration/macroserve-operator"]
    names = [webhook["name"] for webhook in plain["webhooks"]]
    assert [webhook["name"] for webhook in patch["webhooks"]] == names
    assert patch["metadata"]["name"] == plain["metadata"]["name"]
    for webhook in patch["webhooks"]:
        authority = base64.b64decode(webhook["clientConfig"]["caBundle"])
        assert authority == (secrets / "ca.crt").read_bytes()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(secrets / "tls.crt", secrets / "tls.key")
    found = ssl.create_default_context(cafile=secrets / "ca.crt").get_ca_certs()[0]
    assert f"'macroserve-operator.{NAMESPACE}.svc'" in str(found["subjectAltName"])


def test_secret_script_without_openssl_writes_no_empty_token(tmp_path: Path) -> None:
    shutil.copy(FOLDER / "secrets.sh", tmp_path)
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("cat", "cp", "dirname", "mkdir", "tr"):
        (tools / tool).symlink_to(shutil.which(tool) or tool)
    failed = subprocess.run(
        ["/bin/sh", tmp_path / "secrets.sh"], env={"PATH": str(tools)}, capture_output=True
    )
    assert failed.returncode != 0
    assert not (tmp_path / "secrets" / "token").exists()
    (tmp_path / "secrets" / "token").touch()
    make_secrets(tmp_path)
    assert len((tmp_path / "secrets" / "token").read_bytes()) == 48


def test_secret_script_keeps_existing_files(secrets: Path) -> None:
    before = {path.name: path.read_bytes() for path in secrets.iterdir()}
    make_secrets(secrets.parent)
    assert {path.name: path.read_bytes() for path in secrets.iterdir()} == before
    assert len(before["token"]) == 48
