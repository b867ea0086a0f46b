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
from macroserve.engine.vllm.greedy import greedy
from macroserve.engine.vllm.options import engine_args

MAX_STEPS = 5000


class OfflineEngine:
    """The engine serves requests for the likeliest tokens.

    Attributes:
        outputs: The last output of each request that ended.
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
        """Add a request for the likeliest ``num_tokens`` tokens, but for what ``sampling`` says."""
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
        """Return the tokens of all that ended since it was last asked, by request id. Raises
        RuntimeError where that takes more steps."""
        for _ in range(max_steps):
            if not self.unfinished:
                tokens, self._tokens = self._tokens, {}
                return tokens
            self.step()
        raise RuntimeError(f"{self.unfinished} requests never end")


def instance_args(settings: EngineSettings) -> AsyncEngineArgs:
    """Return the arguments with which an instance starts its engine; nobody reads its statuses."""
    args, _ = with_caches(engine_args(settings, Pool.LP, None), settings)
    return args


Engine = TypeVar("Engine", bound=OfflineEngine)


@contextmanager
def offline_engine(args: AsyncEngineArgs, wrap: Callable[[LLMEngine], Engine]) -> Iterator[Engine]:
    """Run an engine that neither yields to servers nor dies with its parent, unlike an
    instance's."""
    with (
        patch.object(scheduler, "_yield_to_servers", lambda: None),
        patch.object(scheduler, "die_with_parent", lambda: None),
        # vLLM would inspect each model in a new process, which imports everything again.
        patch.object(registry, "_run_in_subprocess", lambda inspect: inspect()),
    ):
        llm = LLMEngine.from_engine_args(args)
    engine = wrap(llm)
    try:
        yield engine
    finally:
        # vLLM has one engine to a process: what is left of this one would end the next.
        llm.engine_core.shutdown()
        vars(engine).clear()
        del llm
        gc.collect()


class _Event:
    """An event that has come when it is recorded: a CPU runs each step to its end."""

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
    """Let engines that start here schedule ahead, which vLLM does not do on a CPU.

    Nothing overlaps there, but what is scheduled, and the tokens, are those of asynchronous
    scheduling on a GPU.
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
