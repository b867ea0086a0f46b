"""Engines that rehearse a device, and whether they kept its pace."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from macroserve.core.request import Slo
from macroserve.core.shapes import ModelShape
from macroserve.engine.rehearsal import Rehearsal
from macroserve.engine.settings import EngineSettings
from macroserve.local.tiny_model import ensure_tiny_model
from macroserve.local.user_folders import cache_folder
from macroserve.sim.hardware.models import MODELS

MIN_IDLE = 0.3
"""Least share of the machine's CPU time that is idle while a point counts."""
MAX_MODEL_LEN = 16384
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """A model on devices that engines rehearse.

    scale: factor on all times, so that the machine's CPU weighs less.
    """

    device: str
    model: str
    tensor_parallel: int
    scale: float
    seed: int

    def __post_init__(self) -> None:
        if not _is_dense(MODELS[self.model]):
            raise ValueError(f"--model {self.model}: only dense models are rehearsed by this bench")
        if not self.scale > 0:
            raise ValueError(f"--scale must be above 0, got {self.scale:g}")

    def settings(self, slo: Slo) -> EngineSettings:
        """Return the engine's settings, with vLLM's choice of all sizes."""
        return EngineSettings(
            model=str(_folder(self.model)),
            served_name=self.model.lower(),
            max_model_len=MAX_MODEL_LEN,
            strategy="unified",
            slo=Slo(slo.ttft_s * self.scale, slo.tpot_s * self.scale),
            dtype="bfloat16",
            tensor_parallel=self.tensor_parallel,
            rehearse=self.device,
        )

    def environment(self, log_folder: Path) -> dict[str, str]:
        """Return the variables of the engines' processes."""
        return Rehearsal(
            device=self.device, scale=self.scale, seed=self.seed, log_folder=str(log_folder)
        ).environment()


class SleptStep(NamedTuple):
    """A step whose end an engine has slept for."""

    start_s: float
    """Time on the monotonic clock."""
    late: float
    """By how much its tokens came late, as a share of the step."""


def late_p99(log_folder: Path, from_s: float, to_s: float) -> float:
    """Return P99 of the lateness of the sleeps that began in a span of the monotonic clock."""
    late = [step.late for step in _slept(log_folder) if from_s <= step.start_s < to_s]
    return float(np.percentile(late, 99)) if late else 0.0


def _slept(log_folder: Path) -> Iterator[SleptStep]:
    for path in log_folder.glob("steps-*.jsonl"):
        for line in path.read_text().splitlines():
            # An engine may be writing its last line.
            if line.endswith("}") and (step := json.loads(line))["has_slept"]:
                yield SleptStep(step["start"], step["late_s"] / step["step_s"])


def _is_dense(shape: ModelShape) -> bool:
    return shape.gated_mlp and not (shape.experts or shape.latent or shape.window)


def _folder(model: str) -> Path:
    """Return a checkpoint of the model without weights: the built-in model's tokenizer, and the
    configuration of the model."""
    shape, source = MODELS[model], ensure_tiny_model()
    folder = cache_folder() / "models" / f"rehearsed-{model.lower()}"
    folder.mkdir(parents=True, exist_ok=True)
    for name in TOKENIZER_FILES:
        shutil.copy(source / name, folder / name)
    config = json.loads((source / "config.json").read_text()) | {
        "dtype": "bfloat16",
        "hidden_size": shape.hidden_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "intermediate_size": shape.intermediate_size,
        "vocab_size": shape.vocab_size,
        "max_position_embeddings": MAX_MODEL_LEN,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    return folder
