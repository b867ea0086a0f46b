"""`make sbom` lists every package of every environment, as its lock pins it."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
ENVIRONMENTS = {
    "operator": ("operator.lock",),
    "cpu": ("cpu.lock", "cpu-torch.lock"),
    "gpu": ("gpu.lock",),
}

Pins = dict[tuple[str, str], frozenset[str]]
"""Hashes by name and version."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sbom")
    # As installed: what is under test is the list, not whether the environment is up to date.
    make = ["make", "--old-file=.venv/.installed", "sbom", f"SBOM_FOLDER={folder}"]
    subprocess.run(make, cwd=ROOT, check=True, capture_output=True)
    return folder


def locked(locks: tuple[str, ...]) -> Pins:
    pins: Pins = {}
    for lock in locks:
        text = (ROOT / "requirements" / lock).read_text().replace("\\\n", " ")
        for line in text.splitlines():
            if line and not line.startswith("#"):
                pin, *hashes = line.split()
                name, _, version = pin.partition("==")
                found = frozenset(each.removeprefix("--hash=sha256:") for each in hashes)
                pins[canonicalize_name(name), version] = found
    return pins


def listed(document: dict[str, Any]) -> Pins:
    pins: Pins = {}
    for component in document["components"]:
        purl = PackageURL.from_string(component["purl"])
        assert purl.type == "pypi"
        hashes = frozenset(
            found["content"]
            for reference in component["externalReferences"]
            for found in reference.get("hashes", ())
        )
        pins[canonicalize_name(purl.name), str(purl.version)] = hashes
    return pins


@pytest.mark.parametrize(("name", "locks"), ENVIRONMENTS.items())
def test_sbom_lists_what_the_locks_pin_and_is_valid(
    name: str, locks: tuple[str, ...], folder: Path
) -> None:
    text = (folder / f"{name}.cdx.json").read_text()
    document = json.loads(text)
    assert listed(document) == locked(locks)
    assert document["metadata"]["component"]["name"] == "macroserve"
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
