"""The table of failure modes names tests that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs" / "failure-modes.md"
TEST = re.compile(r"`((?:tests|lab/tests|e2e)/[\w/]+\.py)::(\w+)`")


def rows() -> list[str]:
    lines = TABLE.read_text().splitlines()
    return [line for line in lines if line.startswith("| ") and not line.startswith("| failure ")]


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.split("|")[1].strip())
def test_row_of_failure_modes_names_tests_that_exist(row: str) -> None:
    named = TEST.findall(row)
    assert named, "the row names no test"
    for path, name in named:
        text = (ROOT / path).read_text()
        assert re.search(rf"^(?:async )?def {name}\(", text, re.MULTILINE), f"{path}::{name}"
