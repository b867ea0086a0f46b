"""Subclasses of compiled classes are compiled, as mypyc requires."""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "serving"


def compiled_modules() -> set[Path]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    hook = project["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]
    return {path for pattern in hook["modules"] for path in SOURCES.glob(pattern)}


def classes(module: Path) -> Iterator[ast.ClassDef]:
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.ClassDef):
            yield node


def name_of(base: ast.expr) -> str:
    """Return the name of a base class without its module and its parameters."""
    return ast.unparse(base).partition("[")[0].rpartition(".")[2]


def test_subclasses_of_compiled_classes_are_compiled() -> None:
    """An instance of another one raises TypeError: "interpreted classes cannot inherit from
    compiled". Names of compiled classes are taken as unique."""
    compiled = compiled_modules()
    bases = {each.name for module in compiled for each in classes(module)}
    assert {"CellRouter", "LatencyModel", "InstanceScheduler"} <= bases
    others = [
        path
        for folder in ("operator", "serving", "kernels")
        for path in (ROOT / folder).rglob("*.py")
        if path not in compiled
    ]
    found = [
        f"{path.relative_to(ROOT)}: {each.name}"
        for path in others
        for each in classes(path)
        if bases & set(map(name_of, each.bases))
    ]
    assert found == []
