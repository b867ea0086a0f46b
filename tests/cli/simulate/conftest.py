"""Fixtures run ``macroserve simulate`` on a manifest in a temporary folder."""

import pytest
import yaml
from support.simulate import MANIFEST
from typer import Typer
from typer.testing import CliRunner

from macroserve.cli.simulate.command import simulate


@pytest.fixture
def manifest(tmp_path):
    path = tmp_path / "wanted.yaml"
    path.write_text(yaml.safe_dump(MANIFEST))
    return path


@pytest.fixture
def run(manifest):
    app = Typer()
    app.command()(simulate)
    return lambda *options: CliRunner().invoke(app, ["-f", str(manifest), *map(str, options)])
