"""The shell completes names of papers, figures and engines, and a wrong name lists them."""

import shutil

import pytest
from support.command_line import completions, invoke

from macroserve.cli.bench import bench
from macroserve_lab.bench.hostile.served import ENGINES
from macroserve_lab.cli.bench import HOSTILE_ENGINES
from macroserve_lab.cli.reproduce import FIGURE_NAMES, reproduce
from macroserve_lab.papers import PAPERS, RECORDED


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_completion_in_bash_offers_the_names_that_begin_with_the_word() -> None:
    cases = {
        "macroserve,reproduce,e": ["econoserve", "ecoserve"],
        "macroserve,reproduce,ascendra,--figure,": list(PAPERS["ascendra"]),
        "macroserve,bench,hostile,--engine,": list(ENGINES),
    }
    offered = completions(list(cases))
    assert offered == {case: " ".join(names) for case, names in cases.items()}


@pytest.mark.parametrize(
    ("command", "arguments", "choices"),
    [
        (reproduce, ("none", "--out", "o"), PAPERS),
        (reproduce, ("unified", "--out", "o", "--figure", "none"), PAPERS["unified"]),
        (bench, ("hostile", "--engine", "none"), ENGINES),
    ],
)
def test_wrong_choice_exits_with_2_and_lists_the_choices(command, arguments, choices) -> None:
    result = invoke(command, *arguments)
    assert result.exit_code == 2
    assert all(name in result.output for name in ("none", *choices)), result.output


@pytest.mark.parametrize(
    ("command", "arguments", "choices"),
    [
        (reproduce, (), (*PAPERS, *(name for figures in PAPERS.values() for name in figures))),
        (bench, ("hostile",), ENGINES),
    ],
)
def test_help_lists_every_choice(command, arguments, choices) -> None:
    result = invoke(command, *arguments, "--help")
    assert all(name in result.output for name in choices), result.output


def test_names_of_papers_figures_and_engines_are_those_that_exist() -> None:
    figures = {paper: (*made, *RECORDED.get(paper, ())) for paper, made in PAPERS.items()}
    assert figures == FIGURE_NAMES
    assert tuple(ENGINES) == HOSTILE_ENGINES
