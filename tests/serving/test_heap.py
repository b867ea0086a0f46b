"""Memory of large bodies, in a separate process."""

import os
import subprocess
import sys

import pytest

ALLOCATION = ("GLIBC_TUNABLES", "PYTHONMALLOC")
AS_DEPLOYED = {name: value for name, value in os.environ.items() if name not in ALLOCATION}
"""The environment without settings of memory, which the Makefile makes for other tests."""

# A first large block, then eight with a small one behind each; what the process still holds of the
# eight when they are freed, in MiB.
PROGRAM = """
import ctypes, sys
import psutil
from macroserve.serving.heap import return_large_blocks

malloc, free = ctypes.CDLL(None).malloc, ctypes.CDLL(None).free
malloc.restype, free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]

def block(size):
    address = malloc(size)
    ctypes.memset(address, 1, size)
    return address

if sys.argv[1] == "returned":
    return_large_blocks()
free(block(8 << 20))
before = psutil.Process().memory_info().rss
large = []
for _ in range(8):
    large.append(block(4 << 20))
    block(64 << 10)
for address in large:
    free(address)
print((psutil.Process().memory_info().rss - before) >> 20)
"""


@pytest.mark.parametrize(
    ("how", "fewest_mib", "most_mib"), [("kept", 16, 64), ("returned", -64, 4)]
)
def test_large_blocks_are_returned_though_small_ones_lie_behind_them(
    how: str, fewest_mib: int, most_mib: int
) -> None:
    command = [sys.executable, "-c", PROGRAM, how]
    done = subprocess.run(command, env=AS_DEPLOYED, capture_output=True, text=True, check=True)
    assert fewest_mib <= int(done.stdout) <= most_mib


FREEZE = """
import gc
from macroserve.serving.heap import freeze

freeze()
print(gc.get_freeze_count(), len(gc.get_objects()))
"""


def test_frozen_heap_is_not_collected_again() -> None:
    ran = subprocess.run([sys.executable, "-c", FREEZE], capture_output=True, check=True)
    num_frozen, num_others = map(int, ran.stdout.split())
    assert num_frozen > 1000 and num_others < 100
