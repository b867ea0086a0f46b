"""Measure all hostile cases, on emulated and on real engines."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import typer

from macroserve.engine.settings import EngineSettings
from macroserve_lab.bench.hostile import memory, partition, poison, schemas
from macroserve_lab.bench.hostile.fuzz import fuzz
from macroserve_lab.bench.hostile.served import MODEL, served

FUZZ_SEED = 1
EMULATED_KV_CACHE_BYTES = 8 << 30
"""Cache of the emulated model in bytes, as large as that of the model that it stands for."""


async def measure(
    settings: EngineSettings, engines: Sequence[str], num_bodies: int
) -> dict[str, float]:
    """Return the figures of all cases on each of ``engines``, named as by ``worst``.

    settings: settings of a real engine, for the deployment with a partition.
    num_bodies: number of fuzzed bodies, on real engines only.
    """
    by_engine: dict[str, dict[str, float]] = {}
    for engine in engines:
        by_engine[engine] = await _measure(engine, settings, num_bodies)
    return worst(by_engine)


def worst(by_engine: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return ``hostile.FIGURE``, the largest over all engines, then ``hostile.ENGINE.FIGURE``."""
    figures: dict[str, float] = {}
    for seen in by_engine.values():
        for name, value in seen.items():
            key = f"hostile.{name}"
            figures[key] = max(value, figures.get(key, value))
    for engine, seen in by_engine.items():
        figures |= {f"hostile.{engine}.{name}": value for name, value in seen.items()}
    return figures


async def _measure(engine: str, settings: EngineSettings, num_bodies: int) -> dict[str, float]:
    emulated = engine == "emulated"
    _tell(engine, "a poisonous request")
    seen = await poison.measure(engine)
    async with served(engine, 2) as deployment:
        _tell(engine, "hard schemas")
        seen |= await schemas.measure(deployment)
        _tell(engine, "memory")
        seen |= await memory.measure(deployment)
        if not emulated:
            _tell(engine, f"{num_bodies} fuzzed bodies")
            result = await fuzz(deployment.endpoint, MODEL, num_bodies, FUZZ_SEED)
            seen |= {"bodies": result.num_bodies, "status_5xx": result.num_5xx}
    _tell(engine, "a partition")
    if emulated:
        settings = replace(settings, emulated=True, kv_cache_bytes=EMULATED_KV_CACHE_BYTES)
    return seen | await partition.measure(settings)


def _tell(engine: str, what: str) -> None:
    typer.echo(f"{engine}: {what}...", err=True)
