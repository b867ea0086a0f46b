"""The names of vLLM that the adapter uses, found in its source.

The classes of values come from annotations, constructors and base classes; results of calls and
attributes of attributes are not tracked.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from macroserve import rehearsal
from macroserve.engine import vllm

ADAPTERS = (Path(vllm.__file__).parent, Path(rehearsal.__file__).parent)
"""The packages that touch vLLM."""
VERSIONS = ADAPTERS[0] / "versions.py"
"""The one module that may use names which not all versions have."""


Touches = dict[str, list[str]]
"""Places, file and line, of each touch. A touch is

- ``module:Name`` or ``module:Name.attribute``,
- ``module:Name(word)`` for a call that gives an argument by its name, ``module:Name(2)`` for one
  that gives two by position,
- ``module:Name.method(one, two...)`` for a method of ours in place of vLLM's, which takes no other
  arguments.
"""


def name_of(touch: str) -> str:
    """Return the name that a touch calls, or else the touch itself."""
    return touch.partition("(")[0]


class Found:
    """The touches of the adapter, or of one source.

    Attributes:
        used: touches that vLLM must have.
        ours: definitions in classes of ours, which may replace vLLM's.
        classes: the vLLM class that each class of ours extends, and the names that ours adds.
    """

    def __init__(self) -> None:
        self.used: Touches = defaultdict(list)
        self.ours: Touches = defaultdict(list)
        self.classes: dict[str, tuple[str, set[str]]] = {}

    def add(self, name: str, source: str) -> None:
        _File(name, ast.parse(source), self)


def touches() -> Found:
    """Return the names of vLLM that the adapters use, without ``versions.py``."""
    found = Found()
    for adapter in ADAPTERS:
        for path in sorted(adapter.rglob("*.py")):
            if path != VERSIONS:
                found.add(path.name, path.read_text())
    return found


class _File(ast.NodeVisitor):
    """A visitor of one file, which may extend classes of files visited before."""

    def __init__(self, name: str, tree: ast.Module, found: Found) -> None:
        self._name = name
        self._found = found
        self._imported = {
            alias.asname or alias.name: f"{node.module}:{alias.name}"
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and _is_vllm(node.module)
            for alias in node.names
        }
        self._calls: dict[ast.expr, ast.Call] = {}
        self._depth = 0
        self._base: str | None = None
        self._fields: dict[str, str] = {}
        self._own: set[str] = set()
        self._locals: dict[str, str] = {}
        self.visit(tree)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if _is_vllm(node.module):
            for alias in node.names:
                self._touch(f"{node.module}:{alias.name}", node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        outer = self._base, self._fields, self._own
        names = [base.id for base in node.bases if isinstance(base, ast.Name)]
        extended = [self._found.classes[name] for name in names if name in self._found.classes]
        bases = [self._imported.get(name) for name in names] + [base for base, _ in extended]
        self._base = next(filter(None, bases), None)
        self._fields = dict(self._typed_fields(node))
        self._own = set(_defined(node)).union(*(own for _, own in extended))
        if self._base:
            self._found.classes[node.name] = self._base, self._own
        self.generic_visit(node)
        self._base, self._fields, self._own = outer

    def _typed_fields(self, node: ast.ClassDef) -> Iterator[tuple[str, str]]:
        for part in ast.walk(node):
            match part:
                case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation):
                    if kind := self._class_of(annotation):
                        yield name, kind
                case ast.FunctionDef(name="__init__"):
                    kinds = dict(self._typed_parameters(part))
                    for inner in ast.walk(part):
                        match inner:
                            case ast.Assign(
                                targets=[ast.Attribute(value=ast.Name(id="self"), attr=name)],
                                value=ast.Name(id=given),
                            ) if given in kinds:
                                yield name, kinds[given]

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if self._base and self._depth == 0 and not node.name.startswith("__"):
            given = node.args
            names = [a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
            names = names[names[:1] in (["self"], ["cls"]) :]
            self._touch(f"{self._base}.{node.name}", node, is_ours=True)
            if not given.vararg and not given.kwarg:
                self._touch(f"{self._base}.{node.name}({', '.join(names)}...)", node, is_ours=True)
        outer = self._locals
        self._locals = {**outer, **dict(self._typed_parameters(node))}
        self._depth += 1
        self.generic_visit(node)
        self._depth -= 1
        self._locals = outer

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def _typed_parameters(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef
    ) -> Iterator[tuple[str, str]]:
        for argument in (*node.args.args, *node.args.kwonlyargs):
            if kind := self._class_of(argument.annotation):
                yield argument.arg, kind

    def _class_of(self, annotation: ast.expr | None) -> str | None:
        match annotation:
            case ast.Name(id=name):
                return self._imported.get(name)
            case ast.Constant(value=str(text)):
                return self._class_of(ast.parse(text, mode="eval").body)
            case ast.BinOp(left=left, right=right):
                return self._class_of(left) or self._class_of(right)
        return None

    def visit_Assign(self, node: ast.Assign) -> None:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=ast.Name(id=made))):
                if made in self._imported and made[:1].isupper():
                    self._locals[name] = self._imported[made]
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        kind = self._class_of(node.annotation) if self._depth else None
        if kind and isinstance(node.target, ast.Name):
            self._locals[node.target.id] = kind
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        self._calls[node.func] = node
        match node:
            case ast.Call(
                func=ast.Name(id="getattr" | "setattr" | "hasattr"),
                args=[value, ast.Constant(value=str(attribute)), *_],
            ) if owner := self._owner(value):
                self._touch(f"{owner}.{attribute}", node)
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        if name := self._imported.get(node.id):
            self._touch(name, node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if (owner := self._owner(node.value)) and not node.attr.startswith("__"):
            is_self = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            is_ours = is_self and node.attr in self._own
            self._touch(f"{owner}.{node.attr}", node, is_ours=is_ours)
        self.generic_visit(node)

    def _owner(self, value: ast.expr) -> str | None:
        match value:
            case ast.Name(id="self" | "cls"):
                return self._base
            case ast.Call(func=ast.Name(id="super")):
                return self._base
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                return self._fields.get(name)
            case ast.Name(id=name):
                return self._locals.get(name) or self._imported.get(name)
        return None

    def _touch(self, name: str, node: ast.stmt | ast.expr, is_ours: bool = False) -> None:
        place = f"{self._name}:{node.lineno}"
        found = self._found.ours if is_ours else self._found.used
        found[name].append(place)
        if isinstance(node, ast.expr) and (call := self._calls.get(node)):
            words = [word.arg for word in call.keywords if word.arg]
            by_position = [a for a in call.args if not isinstance(a, ast.Starred)]
            for given in [*words, *([len(by_position)] if by_position else [])]:
                found[f"{name}({given})"].append(place)


def _defined(node: ast.ClassDef) -> Iterator[str]:
    """Yield the names that a class defines: its body's, and those that it assigns to ``self``."""
    for part in node.body:
        match part:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name
    for part in ast.walk(node):
        match part:
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield name


def _is_vllm(module: str | None) -> bool:
    return (module or "").partition(".")[0] == "vllm"
