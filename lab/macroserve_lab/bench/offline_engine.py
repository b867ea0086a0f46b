"""A real vLLM engine in this process, one step at a time."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from unittest.mock import patch

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.inputs import PromptType, TokensPrompt
from vllm.lora.request import LoRARequest
from vllm.model_executor.models import registry
from vllm.outputs import RequestOutput
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
