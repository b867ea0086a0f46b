"""Benchmarks share the environment of their engines."""

import os

from typer.testing import CliRunner

from macroserve.engine.vllm.environment import DEFAULTS
from macroserve_lab.cli.bench import bench


def test_benchmark_engines_have_the_environment_of_a_deployment(monkeypatch):
    others = {name: value for name, value in os.environ.items() if name not in DEFAULTS}
    monkeypatch.setattr(os, "environ", others)
    assert CliRunner().invoke(bench, ["strategies", "--help"]).exit_code == 0
    assert {name: others[name] for name in DEFAULTS} == DEFAULTS
