"""Check Macroserve on this machine's GPU: the kernels' tests and roofline, and our scheduler
compared to vLLM's.

    python3 check.py --json FILE

An archive of ``archive.py`` has everything that this needs besides torch, Triton and Python 3.12.
It takes less than eight minutes. FILE has the measurements, even if some parts failed.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PYTHON = (3, 12)
"""Version for which the archive's packages are built."""
LIMIT_S = 440.0
"""Longest time of all parts together."""
PART_LIMIT_S = {"kernels' tests": 200.0, "kernels' roofline": 120.0}
ENGINE_LIMIT_S = 120.0
STOCK, ENGINES = "stock", ("vllm", "unified", "hybrid")
"""vLLM's scheduler, and our engines that are compared to it. Strategy ``vllm`` has the same
batches, so all its tokens must be equal."""
LEAST_EQUAL = {"vllm": 1.0, "unified": 0.9, "hybrid": 0.9}
"""Minimum share of requests with stock vLLM's tokens, by engine. Only the first has its batches;
others round sums in another order, which in float32 matters only for equally likely tokens."""

NUM_TESTERS = min(16, os.cpu_count() or 1)
"""Processes that test kernels: compiling one for each shape takes longest."""

Figures = dict[str, Any]


class PartError(Exception):
    """A failed part of the check."""


class Check:
    """The parts of the check, run one after another in separate processes.

    keep: called with all measurements after each part.

    Attributes:
        figures: measurements by name.
        errors: end of the output of each failed part.
    """

    def __init__(
        self, here: Path, scratch: Path, keep: Callable[[Figures], None] = lambda figures: None
    ) -> None:
        self.figures: Figures = {}
        self.errors: dict[str, str] = {}
        self._here, self._scratch, self._keep = here, scratch, keep
        self._ends_s = time.monotonic() + LIMIT_S

    def run(self) -> None:
        """Run all parts, except those that depend on a failed one."""
        for part, measure in (
            ("kernels' tests", self._test_kernels),
            ("kernels' roofline", self._measure_kernels),
            ("engines", self._compare_engines),
        ):
            try:
                measure()
            except PartError as error:
                self.errors[part] = str(error)
            self._found({})

    def _found(self, figures: Figures) -> None:
        self.figures |= figures
        self._keep(self.figures | ({"errors": self.errors} if self.errors else {}))

    def _test_kernels(self) -> None:
        report, tests = self._scratch / "tests.xml", self._here / "tests"
        command = ["pytest", "-q", "-p", "no:cacheprovider", "--import-mode=importlib"]
        options = [f"--numprocesses={NUM_TESTERS}", f"--rootdir={tests}"]
        options += [f"--junitxml={report}", str(tests / "kernels")]
        try:
            self._python("kernels' tests", *command, *options)
        finally:
            if report.exists():
                self._found(counted(report.read_text()))

    def _measure_kernels(self) -> None:
        path = self._scratch / "kernels.json"
        self._python("kernels' roofline", "macroserve.kernels.bench", "--json", str(path))
        self._found(roofline(json.loads(path.read_text())))

    def _compare_engines(self) -> None:
        """Compare engines with CUDA graphs or, if stock vLLM fails with them, eager ones."""
        self._engine("build")
        mode = "graphs"
        try:
            stock = self._engine(STOCK, mode)
        except PartError as error:
            self.errors["graphs"] = str(error)
            mode = "eager"
            stock = self._engine(STOCK, mode)
        self._found({"engine.mode": mode, **stock_figures(stock)})
        for name in ENGINES:
            try:
                self._found(compared(name, self._engine(name, mode), stock))
            except PartError as error:
                self.errors[f"engine {name}"] = str(error)

    def _engine(self, *arguments: str) -> Any:
        module, model = "macroserve_lab.bench.gpu.engines", str(self._scratch / "model")
        said = self._python(f"engine {' '.join(arguments)}", module, model, *arguments)
        return json.loads(said.splitlines()[-1]) if said else None

    def _python(self, part: str, module: str, *arguments: str) -> str:
        """Return the output of a module. Raises PartError if it fails or takes too long."""
        limit_s = min(PART_LIMIT_S.get(part, ENGINE_LIMIT_S), self._ends_s - time.monotonic())
        if limit_s <= 0:
            raise PartError(f"no time was left for {part}")
        print(f"{part}...", flush=True)
        began_s = time.monotonic()
        try:
            process = subprocess.run(
                [sys.executable, "-m", module, *arguments],
                env=environment(self._here, self._scratch),
                cwd=self._scratch,
                capture_output=True,
                text=True,
                timeout=limit_s,
            )
        except subprocess.TimeoutExpired as error:
            raise PartError(f"{part} took longer than {limit_s:.0f} s") from error
        print(f"  {time.monotonic() - began_s:.0f} s", flush=True)
        if process.returncode:
            raise PartError(f"{process.stdout}\n{process.stderr}"[-4000:])
        return process.stdout.strip()


def environment(here: Path, scratch: Path) -> dict[str, str]:
    """Return the environment of a part: the archive's packages, and caches in ``scratch``."""
    folders = [str(here / name) for name in ("site", "src", "tests")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(folders),
        "HF_HUB_OFFLINE": "1",
        "TRITON_CACHE_DIR": str(scratch / "triton"),
        "VLLM_CACHE_ROOT": str(scratch / "vllm"),
        # FlashInfer, which samples by default, is not in the archive.
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "VLLM_USE_V2_MODEL_RUNNER": "1",
        # vLLM's attention would round float32 to 10 bits.
        "TRITON_F32_DEFAULT": "ieee",
    }


def counted(junit: str) -> Figures:
    """Return the numbers of tests in pytest's report."""
    suites = [*ElementTree.fromstring(junit).iter("testsuite")]

    def number(name: str) -> int:
        return sum(int(suite.get(name, 0)) for suite in suites)

    failed, skipped = number("failures") + number("errors"), number("skipped")
    passed = number("tests") - failed - skipped
    return {"tests.passed": passed, "tests.failed": failed, "tests.skipped": skipped}


def roofline(document: Any) -> Figures:
    """Return the rates of the device, and the share of its bound that each kernel reaches."""
    rates = document["rates"]
    figures = {
        "rates.copy_gb_per_s": rates["bytes_per_s"] / 1e9,
        "rates.bf16_tflop_per_s": rates["flops_per_s"] / 1e12,
    }
    for kernel in document["kernels"]:
        name = kernel["name"].replace(" x ", "x").replace(" ", ".")
        figures[f"{name}.us"] = kernel["time_s"] * 1e6
        figures[f"{name}.share"] = kernel["share"]
    return figures


def stock_figures(stock: Any) -> Figures:
    """Return the figures of the baseline engine."""
    return {
        "engine.runner": stock["runner"],
        "engine.dtype": stock["dtype"],
        "engine.requests": len(stock["tokens"]),
        "engine.stock.steps_per_s": stock["steps_per_s"],
    }


def compared(name: str, ours: Any, stock: Any) -> Figures:
    """Return steps per second relative to stock vLLM's, the share of requests with its tokens, and
    the share of hidden states."""
    equal = [a == b for a, b in zip(ours["tokens"], stock["tokens"], strict=True)]
    return {
        f"engine.{name}.steps_per_s": ours["steps_per_s"],
        f"engine.{name}.steps_ratio": ours["steps_per_s"] / stock["steps_per_s"],
        f"engine.{name}.tokens_equal": sum(equal) / len(equal),
        f"engine.{name}.hidden_share": ours["hidden_share"],
    }


def why_not() -> str | None:
    """Return why this machine cannot run the check, or None."""
    for name in ("torch", "triton"):
        if find_spec(name) is None:
            return f"the check needs torch and Triton, and this Python has no {name}"
    import torch

    if not torch.cuda.is_available():
        return "the check needs a GPU, and PyTorch finds none here"
    if sys.version_info[:2] != PYTHON:
        wanted, this = (".".join(map(str, each[:2])) for each in (PYTHON, sys.version_info))
        return f"the archive is for Python {wanted}, and this is Python {this}"
    return None


def origin(here: Path) -> Figures:
    """Return the date, the device, the commit and the versions of the measurement."""
    import torch
    import triton

    return {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": torch.cuda.get_device_name(),
        **json.loads((here / "origin.json").read_text()),
        "torch": torch.__version__,
        "triton": triton.__version__,
    }


def failures(check: Check) -> list[str]:
    """Return the reasons why the check has failed, in sentences."""
    found = [f"{part} failed: {words}" for part, words in check.errors.items()]
    for name, least in LEAST_EQUAL.items():
        share = check.figures.get(f"engine.{name}.tokens_equal", 1.0)
        if share < least:
            found.append(f"engine {name} gives {1 - share:.0%} of requests other tokens than stock")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True, help="File to write the figures to.")
    options = parser.parse_args()
    if reason := why_not():
        sys.exit(f"error: {reason}")
    began_s = time.monotonic()
    options.json.parent.mkdir(parents=True, exist_ok=True)
    from_here = origin(HERE)

    def keep(figures: Figures) -> None:
        document = {**from_here, **figures, "took_s": time.monotonic() - began_s}
        options.json.write_text(json.dumps(document, indent=2) + "\n")

    with tempfile.TemporaryDirectory() as scratch:
        check = Check(HERE, Path(scratch), keep)
        check.run()
    print(options.json.read_text())
    if found := failures(check):
        sys.exit("\n".join(found))


if __name__ == "__main__":
    main()
