"""A wheel with compiled schedulers and simulator behaves like the sources."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = os.pathsep.join(str(ROOT / folder) for folder in ("serving", "operator", "kernels"))
MACROSERVE = str(Path(sys.executable).with_name("macroserve"))
BUILD = (sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d")


def run(*command: str, packages: str) -> str:
    environment = {**os.environ, "PYTHONPATH": packages}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not shutil.which("gcc"), reason="mypyc needs a C compiler"),
]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The packages of a compiled wheel, to put on PYTHONPATH."""
    folder = tmp_path_factory.mktemp("compiled")
    # Built in two thirds of the time: what gcc optimizes changes no decision.
    quick = {"MYPYC_OPT_LEVEL": "0", "MYPYC_DEBUG_LEVEL": "0"}
    environment = {**os.environ, **quick, "HATCH_BUILD_HOOK_ENABLE_CUSTOM": "1"}
    subprocess.run([*BUILD, str(folder)], cwd=ROOT, env=environment, check=True)
    (wheel,) = folder.glob("macroserve-*-linux_*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "packages")
    return str(folder / "packages")


def test_compiled_wheel_makes_the_decisions_of_the_sources(compiled: str) -> None:
    script = str(ROOT / "tests" / "support" / "outcomes.py")
    module, *outcomes = run(sys.executable, script, packages=compiled).splitlines()
    assert module.startswith(compiled) and module.endswith(".so")
    module, *expected = run(sys.executable, script, packages=SOURCES).splitlines()
    assert module.endswith("scheduler.py")
    assert outcomes == expected and len(outcomes) > 10


def test_compiled_wheel_plans_the_same_in_several_processes(compiled: str, tmp_path: Path) -> None:
    figures = []
    for name, packages in (("compiled", compiled), ("sources", SOURCES)):
        out = tmp_path / name
        run(
            *(MACROSERVE, "plan", "-f", str(ROOT / "manifests" / "l20-cluster.yaml")),
            *("--rate", "4", "--prompt-tokens", "300", "--output-tokens", "50"),
            *("--duration", "10s", "--device", "L20-48GB", "--model", "Mistral-7B"),
            *("--devices", "4", "--per-node", "2", "--processes", "2", "--out", str(out)),
            packages=packages,
        )
        figures.append((out / "plan.json").read_text())
    assert figures[0] == figures[1]
