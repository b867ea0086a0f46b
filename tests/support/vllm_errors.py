"""The error texts of the installed vLLM, from its source."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

PARTS = (
    "entrypoints/openai",
    "entrypoints/serve",
    "entrypoints/anthropic",
    "entrypoints/generate",
    "entrypoints/scale_out/token_in_token_out",
    "exceptions.py",
    "inputs",
    "multimodal",
    "parser",
    "reasoning",
    "renderers",
    "sampling_params.py",
    "tokenizers",
    "tool_parsers",
    "v1/engine/async_llm.py",
    "v1/engine/input_processor.py",
    "v1/engine/output_processor.py",
    "v1/structured_output",
)
"""Parts of vLLM that may answer a request in an ingress or an instance."""

_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9]*(?:-[a-z0-9]+)*")


@functools.cache
def texts() -> tuple[str, ...]:
    """Return the strings that are raised or passed to error constructors; f-strings in parts."""
    import vllm

    assert vllm.__file__ is not None
    root = Path(vllm.__file__).parent
    found: list[str] = []
    for part in PARTS:
        path = root / part
        assert path.exists(), f"vLLM has no {part} any more: what took its place?"
        for file in [path] if path.is_file() else path.rglob("*.py"):
            found += _error_texts(ast.parse(file.read_text()))
    return tuple(found)


def flags() -> set[str]:
    return {flag for text in texts() for flag in _FLAG.findall(text)}


def _error_texts(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) or (isinstance(node, ast.Call) and _makes_error(node.func)):
            for inner in ast.walk(node):
                if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
                    yield inner.value


def _makes_error(called: ast.expr) -> bool:
    return "error" in ast.unparse(called).lower() and not ast.unparse(called).startswith("logger")
