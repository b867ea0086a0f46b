"""Commands name the extra that installs missing packages."""

import subprocess
import sys
from pathlib import Path

import pytest

from macroserve.cli.extras import extra_of, missing

MANIFEST = Path(__file__).parents[2] / "manifests" / "emulated.yaml"


@pytest.mark.parametrize("module", ["ray", "vllm"])
def test_up_without_an_engine_names_the_extras_that_serve(module: str) -> None:
    program = (
        f"import sys; sys.modules[{module!r}] = None; sys.argv = ['macroserve', 'up', '-f', "
        f"{str(MANIFEST)!r}]; from macroserve.cli.entry import main; main()"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.returncode == 1
    assert ended.stderr == (
        f"error: {module} is not installed: pip install 'macroserve[serve]', "
        "or on CPUs: pip install 'macroserve[serve-cpu]'\n"
    )


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        ("matplotlib.pyplot", "matplotlib is not installed: pip install 'macroserve[bench]'"),
        ("kopf", "kopf is not installed: pip install 'macroserve[operator]'"),
    ],
)
def test_missing_module_is_named_with_its_extra(module: str, expected: str) -> None:
    extra = extra_of(module)
    assert extra is not None
    assert missing(module, extra) == expected


@pytest.mark.parametrize("module", ["macroserve.core.nowhere", "", None])
def test_module_of_no_extra_has_none(module: str | None) -> None:
    assert extra_of(module) is None
