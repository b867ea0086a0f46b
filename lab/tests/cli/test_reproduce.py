"""``macroserve reproduce``, on a figure that takes a second."""

import json

import pytest
from support.experiment import EXPERIMENT
from typer import Typer
from typer.testing import CliRunner

import macroserve_lab.papers as papers
from macroserve.workload.trace import Trace
from macroserve_lab.cli import reproduce as command
from macroserve_lab.papers.figure import Claim, Figure
from macroserve_lab.papers.measurements import Attainment


def calm(case: str, paper: float | None = None) -> Claim:
    return Claim(case, "vllm", "attainment", lambda values: values["calm"], paper)


def twice(paper: float | None = None) -> Claim:
    return Claim("all", "vllm", "times", lambda _: 2.0, paper, is_summary=paper is None)


SMALL = Figure(
    [Attainment("calm", EXPERIMENT, 2.0, 2.0)],
    [calm("calm", 0.5), calm("only ours"), calm("close", 1.2), calm("none in the paper", 0.0)],
    note="it is small",
)
CURVES = Figure([], [twice()], note="it rises later")
CLOSE = Figure([], [twice(2.1)], note="it is not")
EMPTY = Figure([], [Claim("nothing", "vllm", "attainment", lambda _: 0.0)])


TRACE_ROW = {"timestamp": 0, "input_length": 9, "output_length": 2, "hash_ids": [1]}


def recorded(trace: Trace) -> Figure:
    number = len(trace.rows)
    return Figure([], [Claim("all", "vllm", "rows", lambda _: number, is_summary=True)])


@pytest.fixture
def reproduce(monkeypatch):
    figures = {
        "small": SMALL,
        "empty": EMPTY,
        "void": EMPTY,
        "curves": CURVES,
        "close": CLOSE,
    }
    monkeypatch.setattr(papers, "PAPERS", {"unified": figures, "prefixes": {"close": CLOSE}})
    monkeypatch.setattr(papers, "RECORDED", {"prefixes": {"mooncake": recorded}})
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


@pytest.mark.parametrize(("options", "figures"), [((), 2), (("--figure", "mooncake"), 1)])
def test_reproduce_with_a_trace_has_its_figure_too(reproduce, tmp_path, options, figures):
    trace = tmp_path / "trace.jsonl"
    trace.write_text(2 * (json.dumps(TRACE_ROW) + "\n"))
    result = reproduce("prefixes", "--out", tmp_path, "--trace", trace, *options)
    assert result.exit_code == 0, result.output
    rows = json.loads((tmp_path / "prefixes.json").read_text())
    assert len(rows) == figures
    assert (rows[-1]["figure"], rows[-1]["ours"]) == ("mooncake", 2)


def test_reproduce_without_a_trace_leaves_its_figure_out(reproduce, tmp_path):
    result = reproduce("prefixes", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    (row,) = json.loads((tmp_path / "prefixes.json").read_text())
    assert row["figure"] == "close"


@pytest.mark.parametrize(
    ("paper", "text", "options", "sentence"),
    [
        ("prefixes", None, ("--figure", "mooncake"), "'mooncake' needs --trace FILE."),
        ("prefixes", None, ("--figure", "goodput"), "'goodput' is not one of close, the figures"),
        ("prefixes", "", (), "is empty."),
        ("prefixes", '{"timestamp": 0}', (), "line 1: input_length is missing."),
        ("unified", json.dumps(TRACE_ROW), (), "no figure of unified needs a trace."),
    ],
)
def test_reproduce_without_the_trace_it_needs_fails_with_one_sentence(
    reproduce, tmp_path, monkeypatch, paper, text, options, sentence
):
    monkeypatch.chdir(tmp_path)
    if text is not None:
        (tmp_path / "t").write_text(text)
        options = ("--trace", "t", *options)
    result = reproduce(paper, "--out", ".", *options)
    assert result.exit_code == 2
    said = " ".join(result.output.replace("│", " ").split())
    assert sentence in said and "Traceback" not in said
