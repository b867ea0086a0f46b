"""The Makefile uses PyTorch's index unless pip is configured, and sets no variable twice."""

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
CPU_INDEX = "--extra-index-url https://download.pytorch.org/whl/cpu"


def asked(tmp_path: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the lines by which a fresh `make venv` calls pip, by the last lock that they name.

    environment: pip's settings, in place of this machine's.
    """
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    plain |= {"PIP_CONFIG_FILE": os.devnull, "HOME": str(tmp_path), **environment}
    result = subprocess.run(
        ["make", "-n", "-B", "venv"],
        cwd=ROOT,
        env=plain,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line for line in result.stdout.splitlines() if "pip install" in line]
    return {line.rpartition("/")[2]: " ".join(line.split()) for line in lines}


def test_torch_without_pip_settings_comes_from_its_index(tmp_path: Path) -> None:
    lines = asked(tmp_path, {})
    assert lines["cpu-torch.lock"] == (
        f".venv/bin/pip install --no-deps {CPU_INDEX} -r requirements/cpu-torch.lock"
    )
    assert CPU_INDEX not in lines["cpu.lock"]


def test_torch_with_find_links_of_pip_asks_no_further_index(tmp_path: Path) -> None:
    wanted = ".venv/bin/pip install --no-deps -r requirements/cpu-torch.lock"
    assert asked(tmp_path, {"PIP_FIND_LINKS": "wheels"})["cpu-torch.lock"] == wanted

    settings = tmp_path / "pip.conf"
    settings.write_text("[global]\nfind-links = wheels\n")
    from_file = asked(tmp_path, {"PIP_CONFIG_FILE": str(settings)})
    assert from_file["cpu-torch.lock"] == wanted


def test_documentation_has_an_environment_of_its_own() -> None:
    plan = subprocess.run(
        ["make", "-n", "-B", "docs"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    wanted = ".venv-docs/bin/pip install --no-deps --require-hashes -r requirements/docs.lock"
    assert wanted in plan
    assert ".venv-docs/bin/mkdocs build --strict" in plan


def test_peers_have_an_environment_in_the_users_cache(tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    plan = subprocess.run(
        ["make", "-n", "peers"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    pip = f"{tmp_path}/macroserve/peers/bin/pip"
    assert f"{pip} install --no-deps --require-hashes -r requirements/peers.lock" in plan


def test_variable_is_set_once() -> None:
    """The last of two values would replace the first in recipes alone."""
    text = (ROOT / "Makefile").read_text()
    names = re.findall(r"^([A-Z][A-Z_]*) *:?=", text, re.MULTILINE)
    assert sorted(names) == sorted(set(names))
