"""The built-in test model has the same bytes everywhere, is complete, and is a real Llama."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.numpy

from macroserve.local.tiny_model import VERSION, ensure_tiny_model


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ensure_tiny_model(tmp_path_factory.mktemp("models"))


def digests(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()}


def test_tiny_model_built_by_another_process_has_the_same_bytes(
    checkpoint: Path, tmp_path: Path
) -> None:
    code = "from macroserve.local.tiny_model import ensure_tiny_model; print(ensure_tiny_model())"
    environment = {
        **os.environ,
        "XDG_CACHE_HOME": str(tmp_path),
        "PYTHONHASHSEED": "1",
        "RAYON_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    printed = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)
    other = Path(printed.strip())
    assert other == tmp_path / "macroserve" / "models" / checkpoint.name
    assert digests(other) == digests(checkpoint)
    assert "model.safetensors" in digests(other)


def test_tiny_model_asked_for_twice_is_built_once(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safetensors.numpy, "save_file", pytest.fail)
    assert ensure_tiny_model(checkpoint.parent) == checkpoint


def test_tiny_model_whose_build_fails_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(weights: object, path: Path, **_: object) -> None:
        path.write_bytes(b"half of them")
        raise OSError("no space left on device")

    monkeypatch.setattr(safetensors.numpy, "save_file", fail)
    with pytest.raises(OSError, match="no space left"):
        ensure_tiny_model(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_tiny_model_built_twice_at_once_is_the_faster_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = tmp_path / f"tiny-llama-{VERSION}"

    def overtaken(weights: object, path: Path, **_: object) -> None:
        path.write_bytes(b"slower")
        checkpoint.mkdir()
        (checkpoint / "config.json").write_text("faster")

    monkeypatch.setattr(safetensors.numpy, "save_file", overtaken)
    assert ensure_tiny_model(tmp_path) == checkpoint
    assert list(tmp_path.iterdir()) == [checkpoint]
    assert (checkpoint / "config.json").read_text() == "faster"


@pytest.mark.integration
@pytest.mark.parametrize(
    ("architecture", "num_parameters"), [("llama", (20e6, 22e6)), ("opt", (17e6, 19e6))]
)
def test_tiny_model_loaded_by_transformers_generates(
    architecture: str, num_parameters: tuple[float, float], tmp_path: Path
) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    checkpoint = ensure_tiny_model(tmp_path, architecture)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    loaded: Any = AutoModelForCausalLM.from_pretrained(checkpoint, output_loading_info=True)
    model, report = loaded
    assert not any(report.values()), "every weight is there, and none is left over"
    assert model.dtype == torch.float32
    least, most = num_parameters
    assert least < sum(p.numel() for p in model.parameters()) < most

    chat = [{"role": "user", "content": "Grüße, 世界!"}]
    text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    assert text == "user: Grüße, 世界!\nassistant:"
    prompt = tokenizer(text, return_tensors="pt")
    assert tokenizer.decode(prompt["input_ids"][0]) == text
    output = model.generate(**prompt, min_new_tokens=16, max_new_tokens=16, do_sample=False)
    assert output.shape == (1, prompt["input_ids"].shape[1] + 16)
