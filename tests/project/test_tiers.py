"""A tier of tests runs on a new machine, after a change of its files, and every 30 days."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tiers import ROOT, SHARED, TIERS, digest, files_of, is_below, reason_to_skip, run, tracked

DAY_S = 24 * 3600.0


def command(tmp_path: Path, status: int = 0) -> list[str]:
    """Return a command that leaves a file and ends with this status."""
    code = (
        f"import pathlib, sys; pathlib.Path({str(tmp_path / 'ran')!r}).touch(); sys.exit({status})"
    )
    return [sys.executable, "-c", code]


def has_run(tmp_path: Path) -> bool:
    ran = (tmp_path / "ran").exists()
    (tmp_path / "ran").unlink(missing_ok=True)
    return ran


def test_tests_that_passed_are_skipped_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = tmp_path / "cache" / "passed.json"
    assert run(command(tmp_path), record, "this content") == 0
    assert has_run(tmp_path)
    assert run(command(tmp_path), record, "this content") == 0
    assert not has_run(tmp_path)
    assert "its tests passed on 20" in capsys.readouterr().out


def test_tests_after_a_change_run_again(tmp_path: Path) -> None:
    record = tmp_path / "passed.json"
    run(command(tmp_path), record, "this content")
    assert has_run(tmp_path)
    run(command(tmp_path), record, "other content")
    assert has_run(tmp_path)


def test_tests_by_another_command_run(tmp_path: Path) -> None:
    record = tmp_path / "passed.json"
    run(command(tmp_path), record, "this content")
    assert has_run(tmp_path)
    run([*command(tmp_path), "-m", "not e2e"], record, "this content")
    assert has_run(tmp_path)


def test_tests_that_failed_run_again_and_report_it(tmp_path: Path) -> None:
    record = tmp_path / "passed.json"
    for _ in range(2):
        assert run(command(tmp_path, status=3), record, "this content") == 3
        assert has_run(tmp_path)


def test_tests_that_passed_count_for_30_days(tmp_path: Path) -> None:
    record = tmp_path / "passed.json"
    record.write_text('{"tested": "this", "at_s": 0}')
    assert reason_to_skip(record, "this", 29 * DAY_S)
    assert not reason_to_skip(record, "this", 31 * DAY_S)


def checkout(folder: Path, *names: str) -> Path:
    subprocess.run(["git", "init", "-q", folder], check=True)
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return folder


def test_tracked_files_are_those_that_git_does_not_ignore(tmp_path: Path) -> None:
    root = checkout(tmp_path, ".gitignore", "cache", "new/file.py")
    (root / ".gitignore").write_text("cache\n")
    assert tracked(root) == [".gitignore", "new/file.py"]


def test_digest_changes_with_name_and_content(tmp_path: Path) -> None:
    root = checkout(tmp_path, "one", "two")
    seen = {digest(root, ["one"]), digest(root, ["two"]), digest(root, ["one", "two"])}
    (root / "one").write_text("changed")
    assert len(seen | {digest(root, ["one"])}) == 4


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (
            "operator/macroserve/operator/report/events.py",
            {"simulations", "wheel", "api", "lab", "nodes"},
        ),
        ("serving/macroserve/core/batch.py", set(TIERS) - {"cluster"}),
        ("crds/macroinstances.yaml", {"api", "nodes"}),
        (
            "manifests/quickstart.yaml",
            {"simulations", "deployments", "wheel", "api", "lab", "nodes"},
        ),
        ("testcluster/cluster/dns.py", {"deployments", "api", "lab", "cluster", "nodes"}),
        ("lab/macroserve_lab/papers/figure.py", {"simulations", "engines", "deployments", "lab"}),
        ("lab/tests/papers/test_figure.py", {"lab"}),
        ("e2e/test_serving.py", {"api", "nodes"}),
        ("helm/macroserve/values.yaml", {"api", "nodes"}),
        ("docs/index.md", set()),
        ("tests/core/test_shapes.py", {"simulations"}),
        ("tests/crds/test_macroinstances_crd.py", set()),
        ("tests/support/pods.py", set(TIERS)),
        ("requirements/cpu.lock", set(TIERS)),
        ("pyproject.toml", set(TIERS)),
        ("somewhere/new.py", set(TIERS)),
        (".ci/run", set(TIERS)),
    ],
)
def test_tiers_that_a_path_affects(path: str, expected: set[str]) -> None:
    assert {tier for tier in TIERS if files_of(tier, [path])} == expected


def test_places_of_tiers_exist() -> None:
    places = {place for places in (*TIERS.values(), SHARED) for place in places}
    assert [place for place in sorted(places) if not (ROOT / place).exists()] == []


ROOTS = ("serving", "operator", "kernels", "lab", "tests", "lab/tests", "testcluster", "e2e")
"""Folders that modules are imported from."""


def imports(path: Path) -> set[str]:
    """Return the names of the modules, or of things in modules, that a file imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def module(name: str) -> Path | None:
    """Return the file of a module of this project; None for any other name."""
    for root in ROOTS:
        stem = ROOT / root / name.replace(".", "/")
        for path in (stem.with_suffix(".py"), stem / "__init__.py"):
            if path.is_file():
                return path
    return None


def reached(paths: list[Path]) -> set[str]:
    """Return the files of this project that some files import, directly or not."""
    found, waiting = set(paths), list(paths)
    while waiting:
        for path in {each for name in imports(waiting.pop()) if (each := module(name))} - found:
            found.add(path)
            waiting.append(path)
    return {str(path.relative_to(ROOT)) for path in found}


def files_listed_by(variable: str) -> list[Path]:
    """Return the test files of the folders that a variable of the Makefile lists."""
    (listed,) = re.findall(rf"^{variable} := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return [path for each in listed.split() for path in sorted((ROOT / each).rglob("*.py"))]


MARK = re.compile(r"^(pytestmark = \[?|@| +)\S*pytest\.mark\.integration", re.MULTILINE)


def is_integration(path: Path) -> bool:
    return path.name.startswith("test_") and MARK.search(path.read_text()) is not None


VARIABLES = {
    "engines": "ENGINE_TESTS",
    "deployments": "DEPLOYMENT_TESTS",
    "wheel": "WHEEL_TESTS",
    "api": "API_TESTS",
    "lab": "LAB_TESTS",
}


@pytest.mark.parametrize("tier", VARIABLES)
def test_files_that_a_tier_imports_are_among_those_it_depends_on(tier: str) -> None:
    tests = [
        path for path in files_listed_by(VARIABLES[tier]) if tier == "lab" or is_integration(path)
    ]
    assert tests
    outside = {path for path in reached(tests) if not is_below(path, TIERS[tier] + SHARED)}
    assert outside == set()


def test_tests_with_engines_and_servers_are_in_one_tier_each() -> None:
    marked = [path for path in sorted((ROOT / "tests").rglob("*.py")) if is_integration(path)]
    listed = [p for each in VARIABLES.values() for p in files_listed_by(each) if is_integration(p)]
    listed = [path for path in listed if path.is_relative_to(ROOT / "tests")]
    assert sorted(listed) == marked
