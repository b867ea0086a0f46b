"""Deployments start with the same engines, and all their processes end."""

import asyncio
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from macroserve.api.manifest import Manifest
from macroserve.core.request import Slo
from macroserve.engine.settings import EngineSettings
from macroserve.local.manifest_file import engine_settings
from macroserve.local.process_tree import adopt_orphans, descendants, reap_orphans
from macroserve_lab.bench.peers.deployments import (
    Dynamo,
    Engines,
    MacroserveUp,
    VllmRouter,
    deployments,
    macroserve_manifest,
)
from macroserve_lab.bench.peers.environment import MissingEnvironmentError, PeersEnvironment
from macroserve_lab.bench.peers.processes import PeerError, Processes, processes

SETTINGS = EngineSettings(
    model="/models/tiny",
    served_name="tiny",
    max_model_len=2048,
    strategy="unified",
    slo=Slo(2.0, 0.1),
    dtype="float32",
    max_batch_tokens=512,
)
ENGINES = Engines(SETTINGS, count=3, threads=1)
PEERS = PeersEnvironment(Path("/peers"))


class Started(Processes):
    """Processes that are recorded instead of started, and ready at once."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.commands: dict[str, tuple[str, ...]] = {}
        self.environments: dict[str, dict[str, str]] = {}

    def start(self, name, command, environment) -> None:
        self.commands[name] = tuple(command)
        self.environments[name] = dict(environment)

    async def until(self, what, is_so) -> None:
        pass

    async def answers(self, url) -> None:
        pass


def option(command: tuple[str, ...], name: str) -> str:
    return command[command.index(name) + 1]


async def test_stock_engines_have_the_settings_and_cache_prefixes_as_by_default(
    tmp_path: Path,
) -> None:
    started = Started(tmp_path)
    endpoint = await VllmRouter(PEERS, "round_robin").start(ENGINES, started)
    assert list(started.commands) == ["vllm-0", "vllm-1", "vllm-2", "vllm-router"]
    router = started.commands["vllm-router"]
    assert router[0] == "/peers/bin/vllm-router"
    assert option(router, "--policy") == "round_robin"
    assert endpoint == f"http://127.0.0.1:{option(router, '--port')}"
    ports = [option(started.commands[f"vllm-{i}"], "--port") for i in range(3)]
    first = router.index("--worker-urls") + 1
    assert list(router[first : first + 3]) == [f"http://127.0.0.1:{port}" for port in ports]
    engine = started.commands["vllm-0"]
    assert option(engine, "--max-num-batched-tokens") == "512"
    assert option(engine, "--kv-cache-memory-bytes") == str(256 << 20)
    assert not [flag for flag in engine if "prefix-caching" in flag or "kv-events" in flag]
    # One process each, like Macroserve's engines.
    assert started.environments["vllm-0"]["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert started.environments["vllm-0"]["OMP_NUM_THREADS"] == "1"


async def test_stock_engines_have_two_processes_on_demand(tmp_path: Path) -> None:
    started = Started(tmp_path)
    await Dynamo(PEERS, "kv").start(replace(ENGINES, is_split=True), started)
    assert started.environments["dynamo-vllm-0"]["VLLM_ENABLE_V1_MULTIPROCESSING"] == "1"


async def test_router_by_cache_contents_listens_to_each_engine(tmp_path: Path) -> None:
    started = Started(tmp_path)
    await VllmRouter(PEERS, "kv_aware").start(ENGINES, started)
    router = started.commands["vllm-router"]
    sources = [router[i + 1] for i, part in enumerate(router) if part == "--kv-event-source"]
    assert len(set(sources)) == 3
    for index, source in enumerate(sources):
        engine = started.commands[f"vllm-{index}"]
        url, _, events = source.partition("=tcp://127.0.0.1:")
        assert url == f"http://127.0.0.1:{option(engine, '--port')}"
        assert f"tcp://*:{events}" in option(engine, "--kv-events-config")
    assert option(router, "--kv-event-block-size") == "32"


async def test_dynamo_finds_its_workers_in_the_deployments_folder(tmp_path: Path) -> None:
    started = Started(tmp_path)
    await Dynamo(PEERS, "kv").start(ENGINES, started)
    assert len(started.commands) == 4
    assert option(started.commands["dynamo-frontend"], "--router-mode") == "kv"
    assert started.commands["dynamo-vllm-0"][0] == sys.executable
    for environment in started.environments.values():
        assert environment["DYN_DISCOVERY_BACKEND"] == "file"
        assert environment["DYN_FILE_KV"] == str(tmp_path / "discovery")


async def test_macroserve_serves_the_same_engines_in_one_pool(tmp_path: Path) -> None:
    await MacroserveUp().start(ENGINES, Started(tmp_path))
    manifest = Manifest.model_validate(macroserve_manifest(ENGINES, "unified"))
    assert manifest.spec.instances == 3
    assert manifest.strategy.name == "unified"
    assert manifest.spec.priority.high_priority_ratio == 0
    ours = engine_settings(manifest, SETTINGS.model, None)
    for name in (
        "dtype",
        "small",
        "small_cache_bytes",
        "slo",
    ):
        assert getattr(ours, name) == getattr(SETTINGS, name), name


def test_deployments_have_the_names_that_they_are_found_by() -> None:
    assert all(name == each.name for name, each in deployments(PEERS).items())
    assert {"macroserve", "vllm_router_cache_aware", "dynamo_kv"} <= deployments(PEERS).keys()


def test_missing_environment_is_told_with_the_command_that_makes_it(tmp_path: Path) -> None:
    with pytest.raises(
        MissingEnvironmentError, match=r"lacks vllm-router and ai-dynamo: run `make p"
    ):
        PeersEnvironment(tmp_path).versions()


def test_versions_are_those_of_the_environments_packages(tmp_path: Path) -> None:
    for name, version in (("vllm-router", "0.1.17"), ("ai-dynamo", "1.6.1"), ("other", "3")):
        info = (
            tmp_path / f"lib/python3.11/site-packages/{name.replace('-', '_')}-{version}.dist-info"
        )
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    versions = PeersEnvironment(tmp_path).versions()
    assert versions == {"vllm-router": "0.1.17", "ai-dynamo": "1.6.1"}


IGNORES_SIGTERM = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen(["sleep", "600"], start_new_session=True)
print("ready", flush=True)
time.sleep(600)
"""


async def says_ready(log: Path) -> bool:
    return "ready" in await asyncio.to_thread(log.read_text)


async def test_every_process_ends_even_one_that_ignores_the_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("macroserve_lab.bench.peers.processes.STOP_TIMEOUT_S", 0.2)
    others = set(descendants())
    async with processes(tmp_path) as running:
        running.start("stubborn", [sys.executable, "-c", IGNORES_SIGTERM], os.environ)
        await running.until("the process", lambda: says_ready(tmp_path / "stubborn.log"))
        assert len(set(descendants()) - others) == 2
    assert set(descendants()) - others == set()


async def test_process_that_ends_is_told_with_the_end_of_its_log(tmp_path: Path) -> None:
    async def never() -> bool:
        return False

    with pytest.raises(PeerError, match=r"engine ended with exit code 3: no such model"):
        async with processes(tmp_path) as running:
            running.start("engine", ["sh", "-c", "echo no such model; exit 3"], os.environ)
            await running.until("the engine", never)


async def test_start_that_takes_too_long_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("macroserve_lab.bench.peers.processes.START_TIMEOUT_S", 0.1)

    async def never() -> bool:
        return False

    began_s = time.monotonic()
    with pytest.raises(PeerError, match="the engine did not come within"):
        async with processes(tmp_path) as running:
            running.start("engine", ["sleep", "600"], os.environ)
            await running.until("the engine", never)
    assert time.monotonic() - began_s < 10


async def test_cancelled_run_leaves_no_process(tmp_path: Path) -> None:
    others = set(descendants())
    started = asyncio.Event()

    async def run() -> None:
        async with processes(tmp_path) as running:
            running.start("engine", ["sleep", "600"], os.environ)
            started.set()
            await asyncio.sleep(600)

    task = asyncio.create_task(run())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert set(descendants()) - others == set()


async def test_run_cancelled_again_while_it_stops_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("macroserve_lab.bench.peers.processes.STOP_TIMEOUT_S", 1.0)
    others = set(descendants())
    started = asyncio.Event()

    async def run() -> None:
        async with processes(tmp_path) as running:
            running.start("stubborn", [sys.executable, "-c", IGNORES_SIGTERM], os.environ)
            await running.until("the process", lambda: says_ready(tmp_path / "stubborn.log"))
            started.set()
            await asyncio.sleep(600)

    task = asyncio.create_task(run())
    await started.wait()
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0.1)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert set(descendants()) - others == set()


KILLED = """
import asyncio, os, sys
from pathlib import Path
from macroserve_lab.bench.peers.processes import processes

async def run():
    async with processes(Path(sys.argv[1])) as running:
        running.start("engine", ["sleep", "600"], os.environ)
        print("ready", flush=True)
        await asyncio.sleep(600)

asyncio.run(run())
"""


def test_killed_benchmark_takes_its_processes_with_it(tmp_path: Path) -> None:
    adopt_orphans()
    others = set(descendants())
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as bench:
        assert bench.stdout
        assert bench.stdout.readline() == "ready\n"
        bench.kill()
    give_up_s = time.monotonic() + 10
    while left := {pid for pid, state in descendants().items() if state != "Z"} - others:
        assert time.monotonic() < give_up_s, left
        time.sleep(0.02)
    reap_orphans()
