"""The options of ``macroserve bench peers`` are checked before anything starts."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from lab_support.peers_points import point
from typer.testing import CliRunner, Result

from macroserve.local.process_tree import adopt_orphans, descendants
from macroserve_lab.bench.peers.environment import MissingEnvironmentError, peers_environment
from macroserve_lab.bench.peers.journal import Journal
from macroserve_lab.bench.peers.loads import loads
from macroserve_lab.bench.peers.traces import Traces
from macroserve_lab.cli import bench_peers
from macroserve_lab.cli.bench import bench

COMMAND = (sys.executable, "-c", "from macroserve.cli.entry import main; main()", "bench", "peers")


@pytest.fixture
def peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Run the command with ``--json``, in an empty cache folder and without any deployment."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    async def nothing(comparison) -> None:
        pass

    monkeypatch.setattr(bench_peers, "_until_stopped", nothing)

    def run(*options: object) -> Result:
        json_file = str(tmp_path / "peers.json")
        return CliRunner().invoke(bench, ["peers", "--json", json_file, *map(str, options)])

    return run


OURS = ("--deployment", "macroserve")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--deployment", "dynamo_kv"), "lacks vllm-router and ai-dynamo: run `make peers` first"),
        ((*OURS, "--rates", "chats"), "--rates must be like chats=4,5.5,7, got 'chats'"),
        ((*OURS, "--rates", "chats=0,1"), "--rates must be like"),
        ((*OURS, "--rates", "chats=nan"), "--rates must be like"),
        (
            (*OURS, "--rates", "none=1"),
            "'none' is not one of azure_conv, azure_code, chats,",
        ),
        ((*OURS, "--load", "chats", "--rates", "prefixes=1"), "'prefixes' is not one of chats"),
        ((*OURS, "--ttft", "soon"), "--ttft"),
        ((*OURS, "--duration", "0s"), "--duration must be positive"),
        ((*OURS, "--prefix-trace", "none.jsonl"), "none.jsonl: No such file or directory"),
        ((*OURS, "--plot", "/nowhere/plot.png"), "--plot: cannot write /nowhere/plot.png"),
        (("--deployment", "sglang"), "'sglang' is not one of macroserve"),
        ((*OURS, "--json", "figures.jsonl"), "--json must not end in .jsonl"),
        ((*OURS, "--azure-code-trace", "none.csv"), "none.csv: No such file or directory"),
        ((*OURS, "--load", "servegen"), "--load servegen and --servegen-start need --servegen"),
        ((*OURS, "--servegen-start", "18h"), "--servegen-start need --servegen FOLDER"),
        ((*OURS, "--servegen", "none"), "none is not a folder of ServeGen's clients"),
        ((*OURS, "--servegen", "."), ". has 0 files like chunk-0-trace.csv"),
        ((*OURS, "--servegen", ".", "--servegen-start", ""), "--servegen-start: "),
        ((*OURS, "--device", "H300"), "'H300' is not one of A100-40GB"),
        ((*OURS, "--device", "L20-48GB", "--model", "x"), "'x' is not one of OPT-13B"),
        ((*OURS, "--device", "L20-48GB", "--scale", "0"), "--scale must be above 0, got 0"),
        (
            (*OURS, "--device", "L20-48GB", "--load", "azure_conv"),
            "--device needs --rates azure_conv=R,R,...",
        ),
        (("--load", "books"), "'books' is not one of azure_conv"),
    ],
)
def test_impossible_options_are_refused_with_a_sentence(peers, tmp_path, options, sentence) -> None:
    result = peers(*options)
    assert result.exit_code == 2
    assert sentence in " ".join(result.output.replace("│", " ").split())
    assert not (tmp_path / "peers.json").exists()
    assert not (tmp_path / "peers.jsonl").exists()


def test_names_of_loads_are_those_of_the_loads() -> None:
    assert str(bench_peers.LOADS) == ", ".join([*loads(Traces()), "servegen"])


def test_given_traces_are_settings_of_the_journal_by_load(peers, tmp_path: Path) -> None:
    given = Traces(
        azure_conv=tmp_path / "conv.csv",
        azure_code=tmp_path / "code.csv",
        servegen=tmp_path,
        servegen_start_s=1200.0,
    )
    for path, length in ((given.azure_conv, 1), (given.azure_code, 2)):
        assert path
        row = f"2023-11-16 18:15:46,{length},1"
        path.write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{row}\n")
    (tmp_path / "chunk-0-trace.csv").write_text("1200,1.0,1.0,Gamma,1.0,1.0\n")
    lengths = {"0": {"input_tokens": "{4: 1.0}", "output_tokens": "{1: 1.0}"}}
    (tmp_path / "chunk-0-dataset.json").write_text(json.dumps(lengths))
    result = peers(
        *(*OURS, "--azure-trace", given.azure_conv, "--azure-code-trace", given.azure_code),
        *("--servegen", given.servegen, "--servegen-start", "20m", "--load", "servegen"),
    )
    assert result.exit_code == 0, result.output
    settings = json.loads((tmp_path / "peers.jsonl").read_text())
    assert settings["traces"] == given.digests()


def test_figures_are_of_the_sweep_alone(peers, tmp_path: Path) -> None:
    options = (*OURS, "--load", "chats", "--rates", "chats=4", "--rounds", 2)
    assert peers(*options).exit_code == 0
    path = tmp_path / "peers.jsonl"
    settings = path.read_bytes()
    journal = Journal(path, [], [])
    for each in (
        point(attainment=0.8),
        point(round=1, attainment=0.6),
        point(round=2, attainment=0.1),
        point(rate=99.0, attainment=0.1),
        point(load="prefixes"),
    ):
        journal.add(each)
    assert peers(*options).exit_code == 0
    figures = json.loads((tmp_path / "peers.json").read_text())
    assert figures["peers.macroserve.chats.4.attainment"] == 0.7
    assert not [name for name in figures if ".99." in name or "prefixes" in name]
    assert path.read_bytes().startswith(settings)


def test_run_with_other_settings_is_refused(peers) -> None:
    assert peers(*OURS).exit_code == 0
    result = peers(*OURS, "--seed", 1)
    assert result.exit_code == 2
    assert "was measured with seed 0 (now 1)" in " ".join(result.output.split())


@pytest.fixture
def left_behind():
    """Return a function that returns the remaining processes of the test's commands."""
    adopt_orphans()
    before = set(descendants())
    return lambda: set(descendants()) - before


@pytest.mark.integration
def test_stopped_comparison_ends_every_process_and_goes_on_later(
    tmp_path: Path, left_behind
) -> None:
    command = [*COMMAND, "--json", str(tmp_path / "peers.json"), *OURS, "--rounds", "1"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr
    assert "macroserve starts" in process.stderr.readline()
    time.sleep(20)  # Ray and the first engine are on their way
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "goes on after what was measured" in errors
    assert not left_behind()


@pytest.mark.integration
@pytest.mark.timeout(600)
def test_tiny_sweep_measures_vllms_router_and_macroserve(tmp_path: Path, left_behind) -> None:
    try:
        peers_environment().versions()
    except MissingEnvironmentError as reason:
        pytest.skip(str(reason))
    path = tmp_path / "peers.json"
    command = [
        *COMMAND,
        *("--json", str(path), "--plot", str(tmp_path / "peers.svg"), *OURS),
        *("--deployment", "vllm_router_round_robin", "--rounds", "1", "--duration", "4s"),
        *("--load", "chats", "--rates", "chats=2", "--instances", "2"),
    ]
    result = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=560, check=False
    )
    assert result.returncode == 0, result.stderr
    figures = json.loads(path.read_text())
    for name in ("macroserve", "vllm_router_round_robin"):
        start = f"peers.{name}.chats.2"
        assert 0 <= figures[f"{start}.attainment"] <= 1
        assert 0 <= figures[f"{start}.attainment_long"] <= 1
        assert figures[f"{start}.failed_share"] == 0
        assert figures[f"{start}.ttft_p50_ms"] > 0
        assert figures[f"peers.{name}.cpu_ms_per_request"] > 0
        assert figures[f"peers.{name}.engine_cpu_ms_per_request"] > 0
        assert figures[f"peers.{name}.rss_mb"] > 100
    assert figures["peers.p99_ttft_ratio.chats"] > 0
    assert figures["peers.cpu_ratio"] > 0
    assert figures["peers.idle_cpu_pct"] > 0
    assert not left_behind()
    again = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert again.returncode == 0
    assert "starts" not in again.stderr
