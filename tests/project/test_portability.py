"""The files of the tree name no path of the machine on which they were written."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PERSONAL = re.compile(rb"(?<![\w.])/(?:root|work|home|Users)/")


def files() -> Iterator[Path]:
    ignored = {line.strip("/") for line in (ROOT / ".gitignore").read_text().split()}
    for folder, subfolders, names in os.walk(ROOT):
        subfolders[:] = [name for name in subfolders if name not in ignored | {".git"}]
        # In a linked work tree, .git is a file with a path.
        yield from (Path(folder, name) for name in names if name != ".git")


def test_files_of_the_tree_mention_no_home_path() -> None:
    found = [path for path in files() if PERSONAL.search(path.read_bytes())]
    assert found == []
    assert ROOT / "pyproject.toml" in set(files())
