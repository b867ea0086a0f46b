"""The shell completes names of fixed sets, and the error of a wrong name lists the set."""

import shutil

import pytest
from support.command_line import completions, invoke

from macroserve.cli.bench_serve import serve
from macroserve.cli.plan.command import plan
from macroserve.cli.simulate.command import simulate
from macroserve.sim.hardware.devices import DEVICES
from macroserve.sim.hardware.links import LINKS
from macroserve.sim.hardware.models import MODELS


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_completion_in_bash_offers_the_names_that_begin_with_the_word() -> None:
    cases = {
        "macroserve,simulate,--device,A": [name for name in DEVICES if name.startswith("A")],
        "macroserve,plan,--model,Ll": [name for name in MODELS if name.startswith("Ll")],
        "macroserve,plan,--link,": list(LINKS),
        "macroserve,run,instance,--pool,": ["lp", "hp"],
    }
    offered = completions(list(cases))
    assert offered == {case: " ".join(names) for case, names in cases.items()}


MANIFEST = ("-f", "manifests/emulated.yaml", "--rate", "1")


@pytest.mark.parametrize(
    ("command", "arguments", "choices"),
    [
        (simulate, (*MANIFEST, "--device", "none"), DEVICES),
        (simulate, (*MANIFEST, "--device", "L20-48GB", "--link", "none"), LINKS),
        (simulate, (*MANIFEST, "--device", "L20-48GB", "--model", "none"), MODELS),
        (plan, (*MANIFEST, "--out", "o", "--device", "none"), DEVICES),
        (serve, ("--endpoint", "none"), ("completions", "chat")),
        (serve, ("--arrivals", "none"), ("poisson", "gamma")),
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
        (serve, (), ("completions", "chat", "poisson", "gamma")),
    ],
)
def test_help_lists_every_choice(command, arguments, choices) -> None:
    result = invoke(command, *arguments, "--help")
    assert all(name in result.output for name in choices), result.output
