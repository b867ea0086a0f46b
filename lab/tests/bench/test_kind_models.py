"""Small models of the supported kinds."""

from pathlib import Path

import pytest

from macroserve_lab.bench.kind_models import build

pytestmark = pytest.mark.integration

MAX_BYTES = 3_000_000


@pytest.mark.parametrize("kind", ["gemma3", "gptoss", "mla", "moe", "recurrent", "vlm"])
def test_model_of_a_kind_is_small(kind: str, tmp_path: Path) -> None:
    assert (build(tmp_path, kind) / "model.safetensors").stat().st_size < MAX_BYTES


def test_model_of_a_kind_is_the_same_each_time(tmp_path: Path) -> None:
    one, other = (build(tmp_path / name, "gemma3") for name in ("one", "other"))
    weights = "model.safetensors"
    assert (one / weights).read_bytes() == (other / weights).read_bytes()
