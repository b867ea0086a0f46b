"""Build hook that compiles policies and simulator with mypyc (needs gcc), if enabled:

HATCH_BUILD_HOOK_ENABLE_CUSTOM=1 pip install .

The wheel also contains the sources of the compiled modules, which behave the same.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCES = "serving"


class CompileHook(BuildHookInterface):
    """Hook that compiles ``modules``, given as patterns below ``serving/``, into the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return  # edits of the sources have to take effect
        self._workspace = tempfile.TemporaryDirectory()
        tree = Path(self._workspace.name)
        shutil.copytree(Path(self.root, SOURCES), tree, dirs_exist_ok=True)
        for library in compile_tree(tree, self.config["modules"]):
            build_data["force_include"][str(library)] = str(library.relative_to(tree))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable":
            self._workspace.cleanup()


def compile_tree(tree: Path, patterns: list[str]) -> list[Path]:
    """Compile the modules in place. Raises RuntimeError with mypyc's message."""
    modules = sorted({path for pattern in patterns for path in tree.glob(pattern)})
    names = [str(path.relative_to(tree)) for path in modules if path.name != "__init__.py"]
    done = subprocess.run(
        [sys.executable, "-m", "mypyc", "--namespace-packages", "--explicit-package-bases", *names],
        cwd=tree,
        env={**os.environ, "MYPYPATH": str(tree)},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"mypyc compiles nothing:\n{done.stdout}{done.stderr}")
    return [*tree.glob("*.so"), *tree.glob("macroserve/**/*.so")]
