"""Docstrings open with an imperative or a noun phrase, not with a word that refers to the code."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = (
    "serving/macroserve",
    "operator/macroserve",
    "kernels/macroserve",
    "lab",
    "docs/scripts",
    "tests",
    "e2e",
    "testcluster",
)
STAND_INS = """
he his it its itself she that them there these they this those we you your everybody everything
nobody nothing somebody something how what whatever when whenever where wherever whether which
whichever who whoever whom whose why about above across after among around at before behind below
beneath beside besides between beyond by despite during except for from in inside into like near of
off on onto out outside over per since through to toward towards under until unlike up upon via with
within without although and as because but if nor once only or so then though unless while yet again
also always else ever here just never now still too milliseconds seconds
"""
"""Pronouns, question words, prepositions, conjunctions and adverbs: a docstring that opens with one
of them can only be understood next to the code. Durations open with Return. Whether the docstrings
of functions are imperative is checked by ruff (D401)."""


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_bytes())):
        kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        if isinstance(node, kinds) and (text := ast.get_docstring(node, clean=False)):
            yield node.body[0].lineno, text


def opens_with_a_stand_in(docstring: str) -> bool:
    first = re.search(r"[^\W\d_]+", docstring)
    return first is not None and first[0].lower() in STAND_INS.split()


def opens_with_an_attribute(docstring: str) -> bool:
    return re.match(r"[a-z_]+(, [a-z_]+)*: ", docstring) is not None


@pytest.mark.parametrize("folder", FOLDERS)
def test_docstrings_in_a_folder_open_with_a_verb_or_a_noun_phrase(folder: str) -> None:
    paths = sorted((ROOT / folder).rglob("*.py"))
    found = [(path, line, text) for path in paths for line, text in docstrings(path)]
    offenders = [
        f"{path.relative_to(ROOT)}:{line}: {text.splitlines()[0]}"
        for path, line, text in found
        if opens_with_a_stand_in(text) or opens_with_an_attribute(text)
    ]
    assert found
    assert not offenders, "\n".join(offenders)


@pytest.mark.parametrize("docstring", ["Who may call what.", "``Of`` all rates.", "It's late."])
def test_docstring_that_opens_with_a_stand_in_offends(docstring: str) -> None:
    assert opens_with_a_stand_in(docstring)


@pytest.mark.parametrize("docstring", ["path: of a file.", "ttft_s, tpot_s: seconds."])
def test_docstring_that_opens_with_an_attribute_offends(docstring: str) -> None:
    assert opens_with_an_attribute(docstring)


@pytest.mark.parametrize(
    "docstring",
    [
        "Return the rates.",
        "Whole deployments.",
        "All cells that answered.",
        "``macroserve up``: a deployment.",
        "TLS: on.",
    ],
)
def test_docstring_that_opens_with_a_verb_or_a_noun_phrase_passes(docstring: str) -> None:
    assert not opens_with_a_stand_in(docstring)
    assert not opens_with_an_attribute(docstring)
