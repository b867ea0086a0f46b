"""vLLM schedules ahead on a CPU too, where it switches that off without a word.

Nothing overlaps there, but what is scheduled, and the tokens, are those of asynchronous scheduling
on a GPU.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

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


@contextmanager
def forced_async() -> Iterator[None]:
    """Let engines that start here schedule ahead."""
    check = CpuPlatform.check_and_update_config

    def check_and_force(config: VllmConfig) -> None:
        check(config)
        config.scheduler_config.async_scheduling = True

    with ExitStack() as stack:
        for owner, name, stand_in in (
            (torch, "Event", _Event),
            (torch.cuda, "Event", _Event),
            (torch.cuda, "Stream", _Stream),
            (torch.cuda, "current_stream", lambda *_: _Stream()),
            (torch.cuda, "stream", lambda _: nullcontext()),
            (torch.cuda, "synchronize", lambda *_: None),
            (CpuPlatform, "check_and_update_config", staticmethod(check_and_force)),
        ):
            stack.enter_context(patch.object(owner, name, stand_in))
        yield
