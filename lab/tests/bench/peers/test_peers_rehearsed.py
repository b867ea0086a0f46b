"""Deployments whose engines rehearse a device, and points of a machine that kept its pace."""

import json
from pathlib import Path

import pytest

from macroserve.core.request import Slo
from macroserve.engine.rehearsal import VARIABLE
from macroserve.sim.hardware.models import MODELS
from macroserve_lab.bench.peers.deployments import Engines, macroserve_manifest
from macroserve_lab.bench.peers.processes import Processes
from macroserve_lab.bench.peers.rehearsed import Rehearsed, late_p99
from macroserve_lab.bench.stock_vllm import engine_flags

REHEARSED = Rehearsed("L20-48GB", "CodeLlama-34B", tensor_parallel=4, scale=2.0, seed=3)


@pytest.fixture
def engines() -> Engines:
    return Engines(REHEARSED.settings(Slo(5.0, 0.1)), 4, 1, rehearsed=REHEARSED)


def test_both_sides_rehearse_the_same_device_with_vllms_own_sizes(
    engines: Engines, tmp_path: Path
) -> None:
    processes = Processes(tmp_path)
    assert engines.environment(processes)[VARIABLE] == engines.rehearsal(processes)[VARIABLE]
    told = json.loads(engines.rehearsal(processes)[VARIABLE])
    assert (told["device"], told["scale"], told["seed"]) == ("L20-48GB", 2.0, 3)
    assert told["log_folder"].startswith(str(tmp_path))
    flags = engine_flags(engines.settings)
    assert flags[-2:] == ("--tensor-parallel-size", "4")
    assert not {"--max-num-seqs", "--block-size", "--enforce-eager"} & set(flags)
    spec = macroserve_manifest(engines, "vllm")["spec"]
    assert spec["engine"] == {
        "type": "vLLM",
        "rehearse": "L20-48GB",
        "dtype": "bfloat16",
        "tensorParallel": 4,
    }
    assert spec["scheduling"] == {"strategy": "vllm"}
    assert spec["slo"]["ttft"] == "10000ms", "targets are stretched, too"


def test_checkpoint_has_the_shape_of_the_model(engines: Engines) -> None:
    config = json.loads((Path(engines.settings.model) / "config.json").read_text())
    shape = MODELS["CodeLlama-34B"]
    assert (config["num_hidden_layers"], config["hidden_size"]) == (48, shape.hidden_size)
    assert not list(Path(engines.settings.model).glob("*.safetensors"))


def test_lateness_is_of_the_sleeps_within_the_span(tmp_path: Path) -> None:
    def step(start: float, late_s: float, has_slept: bool = True) -> str:
        line = {"start": start, "step_s": 0.05, "late_s": late_s, "has_slept": has_slept}
        return json.dumps(line)

    lines = [step(1.0, 0.05), step(2.0, 0.001), step(3.0, 0.001), step(2.5, 0.5, has_slept=False)]
    (tmp_path / "steps-1.jsonl").write_text("\n".join([*lines, '{"start": 2.6, "ste']))
    assert late_p99(tmp_path, 1.5, 4.0) == pytest.approx(0.02)
    assert late_p99(tmp_path, 0.0, 4.0) > 0.9
    assert late_p99(tmp_path, 5.0, 6.0) == 0.0


@pytest.mark.parametrize(("model", "scale"), [("Mixtral-8x7B", 1.0), ("Llama3.1-8B", 0.0)])
def test_what_cannot_be_rehearsed_is_refused(model: str, scale: float) -> None:
    with pytest.raises(ValueError, match=r"--model|--scale"):
        Rehearsed("L20-48GB", model, 1, scale, 0)
