"""Measure how many engines and streams are lost to one request that kills its engines.

Examples of such faults are illegal memory accesses on a GPU and segmentation faults in a grammar
library. Here the deployment's processes import a module that kills the engine for prompts of a
certain length.
"""

import asyncio
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import aiohttp

from macroserve_lab.bench.hostile.bystanders import bystanders
from macroserve_lab.bench.hostile.served import MODEL, Served, served

INSTANCES = 4
NUM_BYSTANDERS = 8
NUM_TOKENS = 200
AT_ONCE, AFTER_A_TOKEN = 666, 667
"""Prompt lengths that kill an engine at once, and after the first token."""
REQUEST_TIMEOUT_S = 300.0
WATCH_S = 0.2
AFTERMATH_S = 20.0
RECOVERY_S = 120

_FAULT = f"""
import importlib.abc, importlib.util, os, sys, threading

class Fault(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "macroserve.core.scheduler.scheduler":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            take_in = module.InstanceScheduler.add_request

            def add_request(self, request, now):
                length = request.num_prompt_tokens - request.num_streamed_tokens
                if length == {AT_ONCE}:
                    os.kill(os.getpid(), 9)
                if length == {AFTER_A_TOKEN}:
                    threading.Timer(0.5, os.kill, (os.getpid(), 9)).start()
                return take_in(self, request, now)

            module.InstanceScheduler.add_request = add_request

        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Fault())
"""


async def measure(
    engine: str, prompt_lengths: Sequence[int] = (AT_ONCE, AFTER_A_TOKEN)
) -> dict[str, float]:
    """Send one poisonous request for each of ``prompt_lengths``, and return the losses.

    poison_engines_lost: largest number of engines lost to one request.
    poison_streams_broken: number of bystanders' streams broken by all requests.
    """
    with faulty_engines() as environment:
        async with served(engine, INSTANCES, environment) as deployment:
            trials = [await _trial(deployment, length) for length in prompt_lengths]
    return {
        "poison_engines_lost": max(trial["engines_lost"] for trial in trials),
        "poison_streams_broken": sum(trial["streams_broken"] for trial in trials),
        "poison_streams": sum(trial["streams"] for trial in trials),
        "poison_status": max(trial["status"] for trial in trials),
    }


@contextmanager
def faulty_engines() -> Iterator[dict[str, str]]:
    """Return the environment under which engines have the fault."""
    with tempfile.TemporaryDirectory(prefix="hostile-fault-") as folder:
        Path(folder, "sitecustomize.py").write_text(_FAULT)
        yield {"PYTHONPATH": os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH"))))}


async def _trial(deployment: Served, length: int) -> dict[str, float]:
    async with bystanders(deployment.completions, NUM_BYSTANDERS, NUM_TOKENS) as seen:
        await asyncio.sleep(2)
        lost: set[int] = set()
        watch = asyncio.create_task(_watch(deployment, lost))
        status = await _poison(deployment, length)
        await asyncio.sleep(AFTERMATH_S)
        watch.cancel()
    await _whole_again(deployment)
    return {
        "engines_lost": len(lost),
        "streams_broken": len(seen.broken),
        "streams": seen.num_streams,
        "status": status,
    }


async def _watch(deployment: Served, lost: set[int]) -> None:
    known: set[int] = set()
    while True:
        alive = await asyncio.to_thread(deployment.engines)
        lost |= known - alive
        known |= alive
        await asyncio.sleep(WATCH_S)


async def _poison(deployment: Served, length: int) -> int:
    # More tokens than an engine generates before it dies.
    body = {"model": MODEL, "prompt": [5] * length, "max_tokens": 1000, "ignore_eos": True}
    timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)
    async with (
        aiohttp.ClientSession(timeout=timeout) as http,
        http.post(deployment.completions, json=body) as response,
    ):
        return response.status


async def _whole_again(deployment: Served) -> None:
    """Wait until all instances serve again, at most RECOVERY_S."""
    for _ in range(RECOVERY_S):
        if deployment.num_serving == INSTANCES:
            return
        await asyncio.sleep(1)
