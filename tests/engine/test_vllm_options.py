"""What vLLM is told of a frontend."""

import subprocess
from pathlib import Path
from typing import Never

import pytest

from macroserve.engine.settings import EngineSettings
from macroserve.engine.vllm.environment import prepare_environment

prepare_environment()

from vllm.model_executor.models import registry  # noqa: E402

from macroserve.engine.vllm.options import frontend_config  # noqa: E402

pytestmark = pytest.mark.integration


def test_a_frontend_starts_no_process_to_look_at_its_model(
    settings: EngineSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **kwargs: object) -> Never:
        raise AssertionError(f"a process was started: {args}")

    # Where vLLM remembers what it has learnt of models, for other processes and for this one.
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path))
    registry._try_inspect_model_cls.cache_clear()
    monkeypatch.setattr(subprocess, "run", refuse)
    config = frontend_config(settings)
    assert config.model_config.max_model_len == settings.max_model_len
    assert (tmp_path / "modelinfos").is_dir(), "it was known already"
