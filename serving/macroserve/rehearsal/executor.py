"""An executor whose device is a clock.

``execute_model`` notes when the device will have computed a step. The future of ``sample_tokens``
sleeps until then in the engine's own thread, so that scheduling ahead overlaps as on a GPU.
"""

import ctypes
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from vllm.platforms import current_platform
from vllm.platforms.interface import PlatformEnum
from vllm.tokenizers import get_tokenizer
from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
from vllm.v1.executor.abstract import Executor
from vllm.v1.outputs import (
    EMPTY_MODEL_RUNNER_OUTPUT,
    DraftTokenIds,
    LogprobsLists,
    ModelRunnerOutput,
)
from vllm.v1.worker.worker_base import CompilationTimes

from macroserve.engine.vllm.shape import model_shape
from macroserve.rehearsal import rehearsed
from macroserve.rehearsal.cache import cache_bytes, cache_specs
from macroserve.rehearsal.pace import Load, Pace, Step
from macroserve.rehearsal.step_log import StepLog
from macroserve.rehearsal.tokens import Answers

PR_SET_TIMERSLACK = 29
TIMER_SLACK_NS = 1000


class StepOutput(Future[ModelRunnerOutput]):
    """The tokens of a step, which the device has at its end."""

    def __init__(self, output: ModelRunnerOutput, step: Step, log: StepLog) -> None:
        super().__init__()
        self._output, self._step, self._log = output, step, log
        self._is_taken = False

    def done(self) -> bool:
        return time.monotonic() >= self._step.end

    def result(self, timeout: float | None = None) -> ModelRunnerOutput:
        if not self._is_taken:
            left_s = self._step.end - time.monotonic()
            if left_s > 0:
                time.sleep(left_s)
            self._step.late_s = time.monotonic() - self._step.end
            self._log.note(self._step, has_slept=left_s > 0)
            self._is_taken = True
        return self._output


@dataclass(slots=True)
class AnsweredRequest:
    """A request that the worker knows."""

    answer: int
    """Name of its answer."""
    num_tokens: int
    """Tokens of the prompt and of the answer so far."""
    num_prompt_tokens: int
    num_logprobs: int | None


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch on the device."""

    requests: Mapping[str, AnsweredRequest]
    sampling: frozenset[str]
    """The requests that get a token."""
    drafted: Mapping[str, int]
    """Number of drafted tokens, by request."""
    step: Step


class RehearsalExecutor(Executor):
    """One worker without a model. Its ranks are in the duration of a step."""

    supports_pp = True

    @classmethod
    def supports_async_scheduling(cls) -> bool:
        return True

    def _init_executor(self) -> None:
        wanted, config = rehearsed(), self.vllm_config
        self._pace = Pace(
            model_shape(config), config.parallel_config.pipeline_parallel_size, wanted
        )
        self._log = StepLog(wanted.log_folder)
        model = self.model_config
        tokenizer = None
        if not model.skip_tokenizer_init:
            tokenizer = get_tokenizer(model.tokenizer, trust_remote_code=model.trust_remote_code)
        self._vocab_size = model.get_vocab_size()
        self._answers = Answers.of(tokenizer, self._vocab_size, wanted.draft_acceptance)
        self._requests: dict[str, AnsweredRequest] = {}
        self._begun: deque[Batch] = deque()
        self._num_drafts = config.num_speculative_tokens
        self._drafts: DraftTokenIds | None = None
        # Else sleeps end up to 50 us late, and later on a nice process.
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, TIMER_SLACK_NS, 0, 0, 0)

    def collective_rpc(
        self,
        method: Any,
        timeout: float | None = None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        non_block: bool = False,
    ) -> Any:
        """Answer for the worker. Raises NotImplementedError for a method without an answer."""
        if method not in self._worker_methods:
            raise NotImplementedError(f"a rehearsal has no answer to {method}")
        answer = [self._worker_methods[method]()]
        return _completed(answer) if non_block else answer

    @cached_property
    def _worker_methods(self) -> dict[str, Callable[[], Any]]:
        return {
            "get_kv_cache_spec": lambda: cache_specs(self.vllm_config),
            "get_supported_kv_cache_layouts": lambda: ["LBNHC"],
            "determine_available_memory": lambda: cache_bytes(self.vllm_config),
            "compile_or_warm_up_model": lambda: CompilationTimes(0.0, 0.0),
            "get_supported_tasks": lambda: ("generate",),
            "supports_draft_weight_updates": lambda: False,
            "list_loras": set,
            **dict.fromkeys(("add_lora", "remove_lora", "pin_lora"), lambda: True),
            **dict.fromkeys(
                (
                    *("set_kv_cache_layout", "update_max_model_len", "initialize_from_config"),
                    *("execute_dummy_batch", "reset_mm_cache", "reset_encoder_cache", "profile"),
                    *("sleep", "wake_up", "shutdown"),
                ),
                lambda: None,
            ),
        }

    def check_health(self) -> None:
        """Do nothing: a clock is healthy."""

    def shutdown(self) -> None:
        self._log.close()
        # vLLM empties the caches of any other device next.
        current_platform._enum = PlatformEnum.CPU

    def execute_model(self, scheduler_output: SchedulerOutput, non_block: bool = False) -> Any:
        for request_id in scheduler_output.finished_req_ids:
            self._requests.pop(request_id, None)
        result = EMPTY_MODEL_RUNNER_OUTPUT
        if scheduler_output.total_num_scheduled_tokens:
            self._begin(scheduler_output)
            result = None
        return _completed(result) if non_block else result

    def sample_tokens(self, grammar_output: GrammarOutput | None, non_block: bool = False) -> Any:
        batch = self._begun.popleft()
        if grammar_output is not None:
            # The device waits for a mask that depends on the step before.
            self._pace.hold(batch.step, time.monotonic())
        allowed = _allowed_tokens(grammar_output, batch) if grammar_output is not None else {}
        future = StepOutput(self._sampled(batch, allowed), batch.step, self._log)
        return future if non_block else future.result()

    def take_draft_token_ids(self) -> DraftTokenIds | None:
        drafts, self._drafts = self._drafts, None
        return drafts

    def _begin(self, scheduled: SchedulerOutput) -> None:
        now, before = time.monotonic(), self._before(scheduled)
        prefills: list[tuple[int, int]] = []
        num_decodes = context = 0
        sampling: list[str] = []
        drafted = {name: len(ids) for name, ids in scheduled.scheduled_spec_decode_tokens.items()}
        for request_id, num in scheduled.num_scheduled_tokens.items():
            computed, total = before[request_id]
            if num == 1:
                num_decodes += 1
                context += computed + 1
            else:
                prefills.append((num, computed))
            if computed + num - drafted.get(request_id, 0) >= total:
                sampling.append(request_id)
        step = self._pace.step(Load(prefills, num_decodes, context), now)
        requests = {name: self._requests[name] for name in scheduled.num_scheduled_tokens}
        self._begun.append(Batch(requests, frozenset(sampling), drafted, step))

    def _before(self, scheduled: SchedulerOutput) -> dict[str, tuple[int, int]]:
        """Return the computed tokens and all tokens of each request, as the scheduler counts them:
        drafted tokens in flight are accepted."""
        found: dict[str, tuple[int, int]] = {}
        for new in scheduled.scheduled_new_reqs:
            prompt = new.prompt_token_ids or []
            # With what it generated before it was preempted.
            total = len(new.prefill_token_ids or prompt)
            params = new.sampling_params
            self._requests[new.req_id] = AnsweredRequest(
                self._answers.name(prompt),
                total,
                num_prompt_tokens=len(prompt),
                num_logprobs=params.logprobs if params else None,
            )
            found[new.req_id] = (new.num_computed_tokens, total)
        cached = scheduled.scheduled_cached_reqs
        for request_id, computed, num_generated in zip(
            cached.req_ids, cached.num_computed_tokens, cached.num_output_tokens, strict=True
        ):
            request = self._requests[request_id]
            total = request.num_prompt_tokens + num_generated
            if request_id in cached.resumed_req_ids:
                request.num_tokens = total
            found[request_id] = (computed, total)
        return found

    def _sampled(self, batch: Batch, allowed: Mapping[str, int]) -> ModelRunnerOutput:
        """Return a batch's tokens, and draft the next ones.

        allowed: a token that the grammar allows, by request.
        """
        tokens: list[list[int]] = []
        self._drafts = DraftTokenIds([], []) if self._num_drafts else None
        for request_id, request in batch.requests.items():
            if request_id not in batch.sampling:
                tokens.append([])
                continue
            first = request.num_tokens
            if request_id in allowed:
                tokens.append([allowed[request_id]])
            else:
                num_drafts = batch.drafted.get(request_id, 0)
                num = 1 + self._answers.num_accepted(request.answer, first, num_drafts)
                tokens.append(self._answers.tokens(request.answer, first, num))
            request.num_tokens += len(tokens[-1])
            if self._drafts:
                drafts = self._answers.tokens(request.answer, request.num_tokens, self._num_drafts)
                self._drafts.req_ids.append(request_id)
                self._drafts.draft_token_ids.append(drafts)
        rows = {request_id: row for row, request_id in enumerate(batch.requests)}
        logprobs = _logprobs(list(batch.requests.values()), tokens, self._vocab_size)
        return ModelRunnerOutput(list(rows), rows, tokens, logprobs)


def _completed(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


def _allowed_tokens(grammar: GrammarOutput, batch: Batch) -> dict[str, int]:
    """Return the first token that its grammar allows, by request. Drafts have rows of their own."""
    allowed: dict[str, int] = {}
    row = 0
    for request_id in grammar.structured_output_request_ids:
        words = grammar.grammar_bitmask[row]
        word = int(words.nonzero()[0][0])
        bits = int(words[word]) & 0xFFFFFFFF
        allowed[request_id] = 32 * word + (bits & -bits).bit_length() - 1
        row += 1 + batch.drafted.get(request_id, 0)
    return allowed


def _logprobs(
    requests: Sequence[AnsweredRequest], tokens: Sequence[list[int]], vocab_size: int
) -> LogprobsLists | None:
    """Return made-up logprobs of each token and its alternatives, or None if no request wants any.
    Every alternative is 1 less likely in logarithms."""
    wanted = [request.num_logprobs for request in requests if request.num_logprobs is not None]
    if not wanted:
        return None
    most = vocab_size if -1 in wanted else max(wanted)
    first = np.array([token for each in tokens for token in each], dtype=np.int64)
    alternatives = np.arange(most + 1)
    # The sampled token stands before the most likely ones, of which it is the first.
    shifts = np.maximum(alternatives - 1, 0)
    ids = (first[:, None] + shifts[None, :]) % vocab_size
    values = np.broadcast_to(-0.5 - shifts.astype(np.float32), ids.shape)
    begins = np.cumsum([0, *(len(each) for each in tokens)]).tolist()
    return LogprobsLists(ids, values, np.ones(len(first), dtype=np.int64), begins)
