"""The examples are valid manifests."""

from pathlib import Path

import pytest
import yaml

from macroserve.api.manifest import parse

EXAMPLES = sorted((Path(__file__).parents[2] / "manifests").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_example_manifest_parses_and_is_named_like_its_file(path: Path) -> None:
    assert parse(yaml.safe_load(path.read_text())).name == path.stem


def test_example_manifests_include_quickstart_and_emulated() -> None:
    assert {path.name for path in EXAMPLES} >= {"quickstart.yaml", "emulated.yaml"}
