"""Finish a root folder's /opt/macroserve for an image: drop what no pod reads, compile the rest.

    python images/finish.py ROOT

Bytecode is compiled here because a pod's root is read-only: without it every start compiles
thousands of modules anew. It is never checked against its source (unchecked hashes), for nothing
in an image changes, and so it depends on the sources alone, not on their times.
"""

import compileall
import py_compile
import shutil
import subprocess
import sys
from pathlib import Path

PREFIX = Path("/opt/macroserve")

# Below site-packages. Headers stay: FlashInfer compiles against torch's in the GPU image.
LEFT_OUT = (
    "**/tests",
    "**/*.a",
    "**/*.exe",
    "**/*.map",
    "**/*.pyi",
    "ray/jars",  # for Java workers
    "torch/bin/*[Tt]est*",
    "torch/bin/protoc*",
    "torch/test",
)

# vLLM's extensions come with debug information: three quarters of their size.
STRIPPED = "vllm/_C*.so"


def finish(root: Path) -> None:
    tree = root / PREFIX.relative_to("/")
    packages = tree / "lib/python3.11/site-packages"
    for pattern in LEFT_OUT:
        for found in sorted(packages.glob(pattern)):
            if found.is_dir() and not found.is_symlink():
                shutil.rmtree(found)
            else:
                found.unlink(missing_ok=True)  # it may have gone with its folder
    for library in sorted(packages.glob(STRIPPED)):
        subprocess.run(["strip", "--strip-debug", library], check=True)
    # Packages also bring templates that are no valid Python: those stay uncompiled.
    compileall.compile_dir(
        tree,
        quiet=2,
        force=True,
        workers=0,
        stripdir=str(root),
        prependdir="/",
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )


if __name__ == "__main__":
    finish(Path(sys.argv[1]))
