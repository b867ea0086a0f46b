"""Fit the kernels' efficiencies to measured latencies: ``python -m macroserve_lab.kernel_fit``.

FOLDER holds aiconfigurator's tables as ``<device>_{gemm,context_attention,generation_attention}
.parquet`` (latency in ms). It needs scipy and pyarrow, which no other module here needs.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from macroserve.sim.hardware.devices import A100_80GB, H100, Device
from macroserve.sim.hardware.kernels import (
    ROW_BLOCK,
    DecodeAttention,
    MatrixProduct,
    PromptAttention,
    Roof,
)

HELD_OUT = 0.3
"""Share of the rows that are only used to evaluate the fit."""

SOFT_ERROR = 0.1
"""Relative error above which errors count less than their square, for outliers."""

TABLES: dict[str, Device] = {"a100_sxm": A100_80GB, "h100_sxm": H100}

Row = Sequence[int]
Kernel = MatrixProduct | PromptAttention | DecodeAttention


@dataclass(frozen=True, slots=True)
class Table:
    """Measurements of one kernel.

    rows: arguments of the kernel's ``seconds`` except the last.
    seconds: measured time of each row.
    """

    rows: list[Row]
    seconds: np.ndarray

    def part(self, chosen: np.ndarray) -> "Table":
        return Table([self.rows[i] for i in np.flatnonzero(chosen)], self.seconds[chosen])


def products(folder: Path, device: str) -> Table:
    return _table(
        folder / f"{device}_gemm.parquet", "gemm_dtype", lambda r: (r["m"], r["n"], r["k"])
    )


def prompts(folder: Path, device: str) -> Table:
    def arguments(r: dict[str, Any]) -> Row:
        # A batch of prompts counts as more heads.
        heads, kv_heads = (
            r["batch_size"] * r[name] for name in ("num_heads", "num_key_value_heads")
        )
        return r["isl"], 0, heads, kv_heads, r["head_dim"]

    return _table(folder / f"{device}_context_attention.parquet", "kv_cache_dtype", arguments)


def decodes(folder: Path, device: str) -> Table:
    def arguments(r: dict[str, Any]) -> Row:
        blocks = -(-(r["step"] + 1) // ROW_BLOCK)
        return r["batch_size"], blocks, r["num_heads"], r["num_key_value_heads"], r["head_dim"]

    return _table(folder / f"{device}_generation_attention.parquet", "kv_cache_dtype", arguments)


def fit(start: Kernel, table: Table, roof: Roof) -> Kernel:
    """Return the kernel of the same kind with the smallest relative errors."""
    from scipy.optimize import least_squares  # pyright: ignore[reportMissingImports]

    kind = type(start)

    def log_ratios(logs: np.ndarray) -> np.ndarray:
        return np.log(predicted(kind(*np.exp(logs).tolist()), table, roof) / table.seconds)

    found = least_squares(
        log_ratios,
        np.log(list(asdict(start).values())),
        loss="soft_l1",
        f_scale=SOFT_ERROR,
        max_nfev=40,
    )
    return kind(*(float(f"{value:.4g}") for value in np.exp(found.x)))


def predicted(kernel: Kernel, table: Table, roof: Roof) -> np.ndarray:
    seconds: Callable[..., float] = kernel.seconds
    return np.array([seconds(*row, roof) for row in table.rows])


def errors(kernel: Kernel, table: Table, roof: Roof) -> np.ndarray:
    """Return the relative errors, without sign."""
    return np.abs(predicted(kernel, table, roof) / table.seconds - 1)


def held_out(table: Table, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random(len(table.rows)) < HELD_OUT


def _table(path: Path, dtype: str, arguments: Callable[[dict[str, Any]], Row]) -> Table:
    from pyarrow.parquet import read_table  # pyright: ignore[reportMissingImports]

    rows = [r for r in read_table(path).to_pylist() if r[dtype] == "bfloat16"]
    return Table([arguments(r) for r in rows], np.array([r["latency"] for r in rows]) / 1e3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    for name, device in TABLES.items():
        kernels = device.kernels
        for start, read in (
            (kernels.product, products),
            (kernels.prompt_attention, prompts),
            (kernels.decode_attention, decodes),
        ):
            table = read(folder, name)
            held = held_out(table)
            fitted = fit(start, table.part(~held), device.roof)
            off = errors(fitted, table.part(held), device.roof)
            figures = {
                "device": device.name,
                "kernel": type(fitted).__name__,
                "rows": len(table.rows),
                "held_out_error": {"median": np.median(off), "p90": np.quantile(off, 0.9)},
                **asdict(fitted),
            }
            print(json.dumps(figures, default=float))


if __name__ == "__main__":
    main()
