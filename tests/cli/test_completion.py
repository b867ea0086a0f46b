"""The shell completes what a fixed set of names allows, and a wrong name lists the set."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer import Typer
from typer.testing import CliRunner

from macroserve.bench.hostile.served import ENGINES
from macroserve.cli.bench import HOSTILE_ENGINES, bench
from macroserve.cli.bench_serve import serve
from macroserve.cli.plan.command import plan
from macroserve.cli.reproduce.command import FIGURE_NAMES, reproduce
from macroserve.cli.simulate.command import simulate
from macroserve.papers import PAPERS, RECORDED
from macroserve.sim.hardware.devices import DEVICES
from macroserve.sim.hardware.links import LINKS
from macroserve.sim.hardware.models import MODELS

COMPLETE = """
eval "$(_MACROSERVE_COMPLETE=source_bash macroserve)"
complete -p macroserve >/dev/null
for line in "$@"; do
    IFS=, read -ra COMP_WORDS <<< "$line,end"
    unset "COMP_WORDS[-1]"
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _macroserve_completion macroserve
    (IFS=" "; echo "${COMPREPLY[*]}")
done
"""
"""A shell script that sources the completion and completes the last word of each argument."""


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_completion_in_bash_offers_the_names_that_begin_with_the_word() -> None:
    cases = {
        "macroserve,simulate,--device,A": [name for name in DEVICES if name.startswith("A")],
        "macroserve,plan,--model,Ll": [name for name in MODELS if name.startswith("Ll")],
        "macroserve,plan,--link,": list(LINKS),
        "macroserve,reproduce,e": ["econoserve", "ecoserve"],
        "macroserve,reproduce,ascendra,--figure,": list(PAPERS["ascendra"]),
        "macroserve,bench,hostile,--engine,": list(ENGINES),
        "macroserve,run,instance,--pool,": ["lp", "hp"],
    }
    folder = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    command = ["bash", "--norc", "-ec", COMPLETE, "bash", *cases]
    offered = subprocess.check_output(command, text=True, env=environment, timeout=300)
    assert dict(zip(cases, offered.splitlines(), strict=True)) == {
        case: " ".join(names) for case, names in cases.items()
    }


MANIFEST = ("-f", "manifests/emulated.yaml", "--rate", "1")


@pytest.mark.parametrize(
    ("command", "arguments", "choices"),
    [
        (simulate, (*MANIFEST, "--device", "none"), DEVICES),
        (simulate, (*MANIFEST, "--device", "L20-48GB", "--link", "none"), LINKS),
        (simulate, (*MANIFEST, "--device", "L20-48GB", "--model", "none"), MODELS),
        (plan, (*MANIFEST, "--out", "o", "--device", "none"), DEVICES),
        (reproduce, ("none", "--out", "o"), PAPERS),
        (reproduce, ("unified", "--out", "o", "--figure", "none"), PAPERS["unified"]),
        (serve, ("--endpoint", "none"), ("completions", "chat")),
        (serve, ("--arrivals", "none"), ("poisson", "gamma")),
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
        (simulate, (), (*DEVICES, *LINKS, *MODELS, "poisson", "gamma")),
        (plan, (), (*DEVICES, *LINKS, *MODELS)),
        (reproduce, (), (*PAPERS, *(name for figures in PAPERS.values() for name in figures))),
        (serve, (), ("completions", "chat", "poisson", "gamma")),
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


def invoke(command, *arguments: str):
    if isinstance(command, Typer):
        app = command
    else:
        app = Typer()
        app.command()(command)
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "800"})
