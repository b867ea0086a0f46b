"""``macroserve reproduce``, on a figure that takes a second."""

import json

import pytest
from support.experiment import EXPERIMENT
from typer import Typer
from typer.testing import CliRunner

from macroserve import papers
from macroserve.cli.reproduce import command
from macroserve.papers.figure import Figure, Row
from macroserve.papers.measurements import Attainment

SMALL = Figure(
    lambda: [Attainment("calm", EXPERIMENT, 2.0, 2.0)],
    lambda values: [
        Row("small", "calm", "vllm", "attainment", values["calm"], 0.5),
        Row("small", "only ours", "vllm", "attainment", values["calm"]),
        Row("small", "close", "vllm", "attainment", values["calm"], 1.2),
        Row("small", "none in the paper", "vllm", "attainment", values["calm"], 0.0),
    ],
    "it is small",
)

CURVES = Figure(
    list,
    lambda values: [Row("curves", "all", "vllm", "times", 2.0, is_summary=True)],
    "it rises later",
)
CLOSE = Figure(list, lambda values: [Row("close", "all", "vllm", "times", 2.0, 2.1)], "it is not")
EMPTY = Figure(list, lambda values: [Row("empty", "nothing", "vllm", "attainment", 0.0)])


@pytest.fixture
def reproduce(monkeypatch):
    figures = {
        "small": SMALL,
        "empty": EMPTY,
        "void": EMPTY,
        "curves": CURVES,
        "close": CLOSE,
    }
    monkeypatch.setattr(papers, "PAPERS", {"unified": figures})
    app = Typer()
    app.command()(command.reproduce)
    return lambda *arguments: CliRunner().invoke(app, [str(each) for each in arguments])


def test_reproduce_reports_the_papers_values_beside_ours(reproduce, tmp_path):
    result = reproduce("unified", "--out", tmp_path, "--processes", 1)
    assert result.exit_code == 0, result.output
    first, second, third, *_ = json.loads((tmp_path / "unified.json").read_text())
    assert first == {
        "figure": "small",
        "case": "calm",
        "strategy": "vllm",
        "metric": "attainment",
        "ours": 1.0,
        "paper": 0.5,
        "ratio": 2.0,
        "explanation": "it is small",
    }
    assert (second["paper"], second["ratio"], second["explanation"]) == (None, None, None)
    assert third["explanation"] is None
    assert "calm" in result.output and "only ours" not in result.output
    assert "unified: empty has curves alone" in result.output
    assert "Off by more than 30 %: it is small" in result.output
    assert "Beside the paper's curves: it rises later" in result.output
    assert "it is not" not in result.output


@pytest.mark.parametrize(
    ("chosen", "rows"), [((), 8), (("small",), 4), (("small", "empty"), 5), (("void",), 1)]
)
def test_reproduce_with_figures_measures_these_alone(reproduce, tmp_path, chosen, rows):
    options = [option for name in chosen for option in ("--figure", name)]
    result = reproduce("unified", "--out", tmp_path, *options, "--processes", 1)
    assert result.exit_code == 0, result.output
    assert len(json.loads((tmp_path / "unified.json").read_text())) == rows
