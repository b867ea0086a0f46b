"""An executor whose device is a clock.

``execute_model`` notes when the device will have computed a step. The future of ``sample_tokens``
sleeps until then in the engine's own thread, so that scheduling ahead overlaps as on a GPU.
"""

import ctypes
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from vllm.tokenizers import get_tokenizer
from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
from vllm.v1.executor.abstract import Executor
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, ModelRunnerOutput
from vllm.v1.worker.worker_base import CompilationTimes

from macroserve.engine.vllm.shape import model_shape
from macroserve.rehearsal import rehearsal
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


class RehearsalExecutor(Executor):
    """One worker without a model. Its ranks are in the duration of a step."""

    supports_pp = True

    @classmethod
    def supports_async_scheduling(cls) -> bool:
        return True

    def _init_executor(self) -> None:
        rehearsed, config = rehearsal(), self.vllm_config
        self._pace = Pace(
            model_shape(config), config.parallel_config.pipeline_parallel_size, rehearsed
        )
        self._log = StepLog(rehearsed.log_folder)
        model = self.model_config
        tokenizer = None
        if not model.skip_tokenizer_init:
            tokenizer = get_tokenizer(model.tokenizer, trust_remote_code=model.trust_remote_code)
        self._answers = Answers.of(tokenizer, model.get_vocab_size())
        self._prompts: dict[str, tuple[int, int]] = {}
        """Name of the answer to each prompt, and number of its tokens, by request."""
        self._begun: deque[tuple[ModelRunnerOutput, Step]] = deque()
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

    @property
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
                    *("take_draft_token_ids", "sleep", "wake_up", "shutdown"),
                ),
                lambda: None,
            ),
        }

    def check_health(self) -> None:
        """Do nothing: a clock is healthy."""

    def shutdown(self) -> None:
        self._log.close()

    def execute_model(self, scheduler_output: SchedulerOutput, non_block: bool = False) -> Any:
        for request_id in scheduler_output.finished_req_ids:
            self._prompts.pop(request_id, None)
        result = EMPTY_MODEL_RUNNER_OUTPUT
        if scheduler_output.total_num_scheduled_tokens:
            self._begin(scheduler_output)
            result = None
        return _completed(result) if non_block else result

    def sample_tokens(self, grammar_output: GrammarOutput | None, non_block: bool = False) -> Any:
        output, step = self._begun.popleft()
        if grammar_output is not None:
            _obey(output, grammar_output)
        future = StepOutput(output, step, self._log)
        return future if non_block else future.result()

    def _begin(self, scheduled: SchedulerOutput) -> None:
        now, before = time.monotonic(), self._before(scheduled)
        prefills: list[tuple[int, int]] = []
        num_decodes = context = 0
        sampled: list[list[int]] = []
        for request_id, num in scheduled.num_scheduled_tokens.items():
            computed, total = before[request_id]
            if num == 1:
                num_decodes += 1
                context += computed + 1
            else:
                prefills.append((num, computed))
            name = self._prompts[request_id][0]
            is_last = computed + num >= total
            sampled.append([self._answers.token(name, total)] if is_last else [])
        step = self._pace.step(Load(prefills, num_decodes, context), now)
        ids = list(scheduled.num_scheduled_tokens)
        rows = {request_id: row for row, request_id in enumerate(ids)}
        self._begun.append((ModelRunnerOutput(ids, rows, sampled), step))

    def _before(self, scheduled: SchedulerOutput) -> dict[str, tuple[int, int]]:
        """Return the computed tokens and all tokens of each request."""
        found: dict[str, tuple[int, int]] = {}
        for new in scheduled.scheduled_new_reqs:
            prompt = new.prompt_token_ids or []
            self._prompts[new.req_id] = (self._answers.name(prompt), len(prompt))
            # With what it generated before it was preempted.
            total = len(new.prefill_token_ids or prompt)
            found[new.req_id] = (new.num_computed_tokens, total)
        cached = scheduled.scheduled_cached_reqs
        for request_id, computed, num_generated in zip(
            cached.req_ids, cached.num_computed_tokens, cached.num_output_tokens, strict=True
        ):
            found[request_id] = (computed, self._prompts[request_id][1] + num_generated)
        return found


def _completed(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


def _obey(output: ModelRunnerOutput, grammar: GrammarOutput) -> None:
    """Replace the tokens of requests with a grammar by the first one that it allows."""
    rows = zip(grammar.structured_output_request_ids, grammar.grammar_bitmask, strict=False)
    for request_id, row in rows:
        index = output.req_id_to_index[request_id]
        if output.sampled_token_ids[index]:
            word = next(i for i, bits in enumerate(row) if bits)
            bits = int(row[word]) & 0xFFFFFFFF
            output.sampled_token_ids[index] = [32 * word + (bits & -bits).bit_length() - 1]
