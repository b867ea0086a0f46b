"""vLLM schedules ahead on a CPU too, where it switches that off.

Nothing overlaps there, but what is scheduled, and the tokens, are those of asynchronous scheduling
on a GPU.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from vllm.config import VllmConfig
from vllm.platforms.cpu import CpuPlatform


class _Event:
    """The event has come when it is recorded: a CPU runs each step to its end."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def record(self, *_: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass


class _Stream:
    def wait_stream(self, _: object) -> None:
        pass

    def wait_event(self, _: object) -> None:
        pass

    def synchronize(self) -> None:
        pass


@contextlib.contextmanager
def forced_async() -> Iterator[None]:
    """Let engines that start here schedule ahead."""
    check = CpuPlatform.check_and_update_config

    def check_and_force(config: VllmConfig) -> None:
        check(config)
        config.scheduler_config.async_scheduling = True

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "Event", _Event)
        patch.setattr(torch.cuda, "Event", _Event)
        patch.setattr(torch.cuda, "Stream", _Stream)
        patch.setattr(torch.cuda, "current_stream", lambda *_: _Stream())
        patch.setattr(torch.cuda, "stream", lambda _: contextlib.nullcontext())
        patch.setattr(torch.cuda, "synchronize", lambda *_: None)
        patch.setattr(CpuPlatform, "check_and_update_config", staticmethod(check_and_force))
        yield
