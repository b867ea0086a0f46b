"""Real vLLM engines in this process, one step at a time."""

import gc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, TypeVar
from unittest.mock import patch

import torch
from vllm.config import VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.inputs import PromptType, TokensPrompt
from vllm.lora.request import LoRARequest
from vllm.model_executor.models import registry
from vllm.outputs import RequestOutput
from vllm.platforms.cpu import CpuPlatform
from vllm.v1.engine.llm_engine import LLMEngine

from macroserve.core.status import Pool
from macroserve.engine.settings import EngineSettings
from macroserve.engine.vllm import scheduler
from macroserve.engine.vllm.caches import with_caches
from macroserve.engine.vllm.options import engine_args
from macroserve_lab.greedy import greedy

MAX_STEPS = 5000


class OfflineEngine:
    """An engine for greedy requests.

    Attributes:
        outputs: last output of each ended request.
    """

    def __init__(self, llm: LLMEngine) -> None:
        self.llm = llm
        self.outputs: dict[str, RequestOutput] = {}
        self._tokens: dict[str, list[int]] = {}

    @property
    def unfinished(self) -> int:
        return self.llm.get_num_unfinished_requests()

    def add(
        self,
        request_id: str,
        prompt: list[int] | PromptType,
        num_tokens: int,
        lora: LoRARequest | None = None,
        **sampling: Any,
    ) -> None:
        """Add a greedy request for ``num_tokens`` tokens, with changes by ``sampling``."""
        if isinstance(prompt, list):
            prompt = TokensPrompt(prompt_token_ids=prompt)
        params = greedy(num_tokens, **sampling)
        self.llm.add_request(request_id, prompt, params, lora_request=lora)

    def abort(self, request_id: str) -> None:
        self.llm.abort_request([request_id])

    def step(self) -> None:
        for output in self.llm.step():
            assert isinstance(output, RequestOutput), "no request pools"
            if output.finished:
                self.outputs[output.request_id] = output
                self._tokens[output.request_id] = list(output.outputs[0].token_ids)

    def finish(self, max_steps: int = MAX_STEPS) -> dict[str, list[int]]:
        """Run all requests; return the tokens of those that ended since the last call, by id.
        Raises RuntimeError after ``max_steps``."""
        for _ in range(max_steps):
            if not self.unfinished:
                tokens, self._tokens = self._tokens, {}
                return tokens
            self.step()
        raise RuntimeError(f"{self.unfinished} requests never end")


def instance_args(settings: EngineSettings) -> AsyncEngineArgs:
    """Return the engine arguments of an instance, without a receiver of statuses."""
    args, _ = with_caches(engine_args(settings, Pool.LP, None), settings)
    return args


Engine = TypeVar("Engine", bound=OfflineEngine)


@contextmanager
def offline_engine(args: AsyncEngineArgs, wrap: Callable[[LLMEngine], Engine]) -> Iterator[Engine]:
    """Run an engine that, unlike an instance's, does not lower its priority."""
    with (
        patch.object(scheduler, "_yield_to_servers", lambda: None),
        # vLLM would inspect each model in a new process, with slow imports.
        patch.object(registry, "_run_in_subprocess", lambda inspect: inspect()),
    ):
        llm = LLMEngine.from_engine_args(args)
    engine = wrap(llm)
    try:
        yield engine
    finally:
        # vLLM supports one engine per process; remains of this one would break the next.
        llm.engine_core.shutdown()
        vars(engine).clear()
        del llm
        gc.collect()


class _Event:
    """An event that is complete when recorded, as a CPU runs steps synchronously."""

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
    """Force asynchronous scheduling, which vLLM does not use on a CPU.

    Nothing overlaps there, but batches and tokens are those of asynchronous scheduling on a GPU.
    """
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
