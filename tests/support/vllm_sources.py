"""The Python sources of the supported versions of vLLM, in the user's cache folder.

``fetch`` downloads each wheel, a third of a gigabyte, once; nothing of them is installed.
"""

import ast
import functools
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

RELEASES = ("0.31.0", "0.32.0", "0.33.0")
"""Versions of vLLM from whose sources the names are taken."""
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
FOLDER = CACHE / "macroserve" / "vllm-sources"

Function = ast.FunctionDef | ast.AsyncFunctionDef


def fetch(release: str) -> Path:
    """Return the folder of a version's sources, downloaded if missing."""
    folder = FOLDER / release
    if not folder.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=FOLDER) as scratch:
            download = ["pip", "download", "--quiet", "--no-deps", "--no-cache-dir"]
            wanted = ["--dest", scratch, f"vllm=={release}"]
            subprocess.run([sys.executable, "-m", *download, *wanted], check=True)
            (wheel,) = Path(scratch).glob("*.whl")
            sources = Path(scratch) / "sources"
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(
                    sources, (name for name in archive.namelist() if name.endswith(".py"))
                )
            sources.rename(folder)
    return folder


@dataclass(frozen=True)
class Found:
    """A name in a version's sources.

    Attributes:
        module: Module that defines it.
        node: Its definition; None for a module.
    """

    module: str
    node: ast.AST | None


class Sources:
    """The names of a version, with their parameters."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def has(self, touch: str) -> bool:
        """Return whether a touch of ``vllm_touches`` fits this version."""
        name, _, given = touch.removesuffix(")").partition("(")
        found = self._resolve(name)
        if not given or found is None:
            return found is not None
        names, by_position, is_open = self._parameters(found)
        if given.endswith("..."):
            return names <= set(given.removesuffix("...").split(", ")) and not is_open
        if given.isdigit():
            return is_open or int(given) <= by_position
        return is_open or given in names

    def _resolve(self, name: str) -> Found | None:
        module, _, path = name.partition(":")
        first, *rest = path.split(".")
        found = self._find(module, first)
        for attribute in rest:
            found = found and self._attribute(found, attribute)
        return found

    def _find(self, module: str, name: str) -> Found | None:
        tree, is_package = self._tree(module)
        last: Found | None = None
        for node in _statements(tree.body) if tree else ():
            match node:
                case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                    if node.name == name:
                        last = Found(module, node)
                case ast.Assign() | ast.AnnAssign():
                    if name in _assigned(node):
                        last = Found(module, node)
                case ast.ImportFrom():
                    origin = _origin(node, module, is_package)
                    for alias in node.names:
                        if alias.name == "*":
                            last = self._find(origin, name) or last
                        elif (alias.asname or alias.name) == name and origin != module:
                            last = self._find(origin, alias.name)
        if last is None and self._tree(f"{module}.{name}")[0]:
            return Found(f"{module}.{name}", None)
        return last

    def _attribute(self, owner: Found, name: str) -> Found | None:
        if owner.node is None:
            return self._find(owner.module, name)
        for kind in self._lineage(owner):
            assert isinstance(kind.node, ast.ClassDef)
            found = [node for node in _members(kind.node) if name in _names(node)]
            if found:
                return Found(kind.module, found[-1])
        return None

    def _lineage(self, kind: Found) -> Iterator[Found]:
        """Yield a class and its base classes in vLLM."""
        if isinstance(kind.node, ast.ClassDef):
            yield kind
            for base in kind.node.bases:
                name = ast.unparse(base).partition("[")[0]
                if "." not in name and (found := self._find(kind.module, name)):
                    yield from self._lineage(found)

    def _parameters(self, found: Found) -> tuple[set[str], int, bool]:
        """Return the names of the parameters, the number of positional ones, and whether there are
        arbitrary others."""
        match found.node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                given = found.node.args
                names = [argument.arg for argument in (*given.posonlyargs, *given.args)]
                names = names[names[:1] in (["self"], ["cls"]) :]
                words = {argument.arg for argument in given.kwonlyargs}
                return {*names, *words}, len(names), bool(given.vararg or given.kwarg)
            case ast.ClassDef():
                if init := self._attribute(found, "__init__"):
                    return self._parameters(init)
                fields = {
                    node.target.id
                    for kind in self._lineage(found)
                    for node in getattr(kind.node, "body", ())
                    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
                }
                return fields, len(fields), not fields
        return set(), 0, True

    @functools.cache  # noqa: B019
    def _tree(self, module: str) -> tuple[ast.Module | None, bool]:
        """Return a module's tree, and whether it is a package."""
        path = self._folder.joinpath(*module.split("."))
        for file in (path / "__init__.py", path.with_suffix(".py")):
            if file.is_file():
                return ast.parse(file.read_text()), file.name == "__init__.py"
        return None, False


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield statements, including those under conditions."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try):
            yield from _statements([*node.body, *node.orelse])
        if isinstance(node, ast.Try):
            for handler in node.handlers:
                yield from _statements(handler.body)


def _members(kind: ast.ClassDef) -> Iterator[ast.AST]:
    """Yield the definitions of a class's attributes: its body, and assignments to ``self``."""
    yield from _statements(kind.body)
    for method in kind.body:
        if isinstance(method, Function):
            for node in ast.walk(method):
                if isinstance(node, ast.Assign | ast.AnnAssign):
                    yield node


def _names(node: ast.AST) -> set[str]:
    if isinstance(node, Function | ast.ClassDef):
        return {node.name}
    return _assigned(node) if isinstance(node, ast.Assign | ast.AnnAssign) else set()


def _assigned(node: ast.Assign | ast.AnnAssign) -> set[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    names: set[str] = set()
    for target in targets:
        for part in ast.walk(target):
            match part:
                case ast.Attribute(value=ast.Name(id="self"), attr=name):
                    names.add(name)
                case ast.Name(id=name, ctx=ast.Store()):
                    names.add(name)
    return names


def _origin(node: ast.ImportFrom, module: str, is_package: bool) -> str:
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    kept = parts[: len(parts) - node.level + is_package]
    return ".".join([*kept, *filter(None, [node.module])])
