"""Macroserve's instance scheduler as vLLM's ``scheduler_cls``: the core policy decides each
iteration, and vLLM's scheduler executes it."""

import os
import time
from collections import deque
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from vllm.platforms import current_platform
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason
from vllm.v1.engine.core import EngineCore
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from macroserve.api.messages import RequestInfo
from macroserve.core.batch import Batch, BatchResult
from macroserve.core.hybrid_cache import keeping_hidden
from macroserve.core.latency import LatencyModel
from macroserve.core.request import Slo
from macroserve.core.scheduler.config import InstanceConfig
from macroserve.core.scheduler.rounds import Rounds
from macroserve.core.scheduler.scheduler import InstanceScheduler
from macroserve.core.status import Pool
from macroserve.core.tuning import Tuning
from macroserve.engine.commands import apply_command
from macroserve.engine.ordering import ordered_strategy
from macroserve.engine.status import Heart, StatusSender
from macroserve.engine.tokens import DEAD_END, HAND_BACK_PREFIX
from macroserve.engine.vllm import ENGINE_NICENESS, OPTIONS_KEY
from macroserve.engine.vllm.block_groups import (
    block_groups,
    max_decoding_tokens,
    piece_tokens,
)
from macroserve.engine.vllm.cache_record import VllmCacheRecord
from macroserve.engine.vllm.exact_scheduler import ExactScheduler
from macroserve.engine.vllm.host_cache import HostCache
from macroserve.engine.vllm.hybrid import HIDDEN_REQUESTS
from macroserve.engine.vllm.hybrid.cache_spec import HybridBlocks
from macroserve.engine.vllm.shape import assumed_device, model_shape
from macroserve.engine.vllm.step_kinds import StepKinds


def command(core: EngineCore, verb: str, argument: Any) -> Any:
    """Apply a command of ``commands.apply_command`` to the core's scheduler."""
    scheduler = core.scheduler
    assert isinstance(scheduler, MacroserveScheduler)
    return scheduler.command(verb, argument)


@dataclass(frozen=True, slots=True)
class _Step:
    """A batch in flight."""

    output: SchedulerOutput
    tokens: Mapping[str, int]
    """Tokens promised to the policy, by request id."""
    predicted_s: float
    is_first: bool
    """Whether it is the first of its kind (``StepKinds``)."""


class MacroserveScheduler(ExactScheduler):
    """A scheduler for engines with and without asynchronous scheduling.

    Attributes:
        policy: decides each step, or each round of a pipeline's steps.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _yield_to_servers()
        config = self.vllm_config.additional_config
        assert isinstance(config, dict)
        options = config[OPTIONS_KEY]
        self._slo = Slo(**options["slo"])
        self._introduced: dict[str, RequestInfo] = {}
        managers = self.kv_cache_manager.coordinator.single_type_managers
        self._hybrid_blocks = managers[0] if isinstance(managers[0], HybridBlocks) else None
        shape = model_shape(self.vllm_config)
        self._host: HostCache | None = None
        if self.connector is not None:
            token_bytes = shape.kv_bytes_per_token / shape.tensor_parallel
            self._host = HostCache(self.connector, token_bytes, self.block_size)
        self._cache_record = VllmCacheRecord(
            self.kv_cache_manager,
            self.requests,
            max_decoding_tokens(self.vllm_config),
            self._host,
            self.deferred_frees,
        )
        num_stages = self.parallel_config.pipeline_parallel_size
        strategy = ordered_strategy(options["strategy"], options["ordering"])
        self.policy = InstanceScheduler(
            InstanceConfig(
                strategy=keeping_hidden(strategy, self._hybrid_blocks is not None),
                pool=Pool(options["pool"]),
                slo=self._slo,
                # vLLM keeps one block of the pool as its null block.
                num_blocks=self.kv_cache_config.num_blocks - 1,
                block_size=managers[0].block_size,
                block_groups=block_groups(managers, self.vllm_config),
                piece_tokens=piece_tokens(self.vllm_config),
                max_num_seqs=self.max_num_running_reqs,
                # A round has a batch per stage.
                max_batch_tokens=self._batch_capacity() * num_stages,
                max_model_len=self.max_model_len,
                num_drafts=self.num_spec_tokens,
                num_draft_slots=self._num_draft_slots(),
                drop_late=options["drop_late"],
                max_late_wait_s=options["max_late_wait_s"],
                tuning=Tuning(**options["tuning"]).over_stages(num_stages),
                hidden_states_per_block=self._hybrid_blocks
                and self._hybrid_blocks.hidden_states_per_block,
                max_adapters=self.lora_config and self.lora_config.max_loras,
            ),
            LatencyModel(shape, assumed_device()),
            self._cache_record,
        )
        self._batches = Rounds(self.policy, num_stages) if num_stages > 1 else self.policy
        # Until the cell reports that another instance accepts the requests.
        self.policy.let_offload(False)
        self._handed_back: list[tuple[int, EngineCoreOutput]] = []
        self._leaving: dict[str, None] = {}
        self._steps: deque[_Step] = deque()
        self._kinds = StepKinds()
        self._sender = StatusSender(options["status_path"])
        self._heart = Heart(self._sender, lambda: len(self.requests))
        self._push_status(time.monotonic())

    def _batch_capacity(self) -> int:
        """Return the maximum tokens of a batch, less the drafter's slots for each sequence."""
        spec, config = self.vllm_config.speculative_config, self.scheduler_config
        each = spec.max_num_new_slots_for_drafting if spec else 0
        left = config.max_num_batched_tokens - each * self.max_num_running_reqs
        return min(self.max_num_scheduled_tokens, left)

    def _num_draft_slots(self) -> int:
        """Return a request's slots beyond its tokens, where each step in flight counts as one
        token: the drafted tokens of these steps and the next, and the drafter's lookahead."""
        num_steps = self.vllm_config.max_concurrent_batches
        return num_steps * self.num_spec_tokens + self.num_lookahead_tokens

    # -- requests in and out

    def introduce(self, request_id: str, info: RequestInfo) -> None:
        """Take what Macroserve knows of the request that is added next; without, it gets the
        instance's targets."""
        self._introduced[request_id] = info

    def add_request(self, request: Request) -> None:
        now = time.monotonic()
        super().add_request(request)
        params, name = request.sampling_params, request.request_id
        assert params is not None, "only generation requests are served"
        self._kinds.add(name, params)
        unknown = RequestInfo(route_id=name, age_s=0.0, slo=self._slo)
        info = self._introduced.pop(name, unknown)
        sizes = (request.num_prompt_tokens, request.max_tokens)
        adapter = request.lora_request and request.lora_request.lora_name
        known = info.to_request(name, *sizes, now, adapter)
        refusal = self.policy.add_request(known, now)
        if refusal is not None:
            # Not expected: the frontend checks lengths, and vLLM checks at the start that the pool
            # fits the longest request.
            raise ValueError(f"request {request.request_id}: {refusal}")
        self._push_status(now)

    def finish_requests(
        self, request_ids: str | Iterable[str] | None, finished_status: RequestStatus
    ) -> list[Request]:
        finished = super().finish_requests(request_ids, finished_status)
        self._cache_record.refresh()
        for request in finished:
            self._kinds.remove(request.request_id)
            self._leaving[request.request_id] = None
        self._let_go()
        if finished:
            self._push_status(time.monotonic())
        return finished

    def _let_go(self) -> None:
        """Finish the requests that left, except those whose blocks are still being loaded."""
        for request_id in [name for name in self._leaving if name not in self.requests]:
            del self._leaving[request_id]
            self.policy.finish(request_id)
            if self._host:
                self._host.forget(request_id)

    # -- one iteration

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        now = time.monotonic()
        batch = self._batches.schedule(now)
        num_tokens = self.num_tokens_of(batch)
        is_first = self._begin(batch, num_tokens)
        self.preempt(map(self.requests.__getitem__, batch.preempted), now)
        if batch.handed_back:
            self._hand_back(batch)
        ids = [prefill.request_id for prefill in batch.prefills]
        beginning = {name for name in ids if self.requests[name].status != RequestStatus.RUNNING}
        if self._hybrid_blocks:
            for prefill in batch.prefills:
                self._hybrid_blocks.set_hidden(prefill.request_id, prefill.hidden)
        output = self.schedule_exactly(batch, num_tokens, throttle_prefills)
        if self._hybrid_blocks:
            hidden = filter(self._hybrid_blocks.is_hidden, output.num_scheduled_tokens)
            setattr(output, HIDDEN_REQUESTS, frozenset(hidden))
        self._cache_record.refresh()
        taken = self._taken(batch, beginning, output)
        if self._host:
            for request_id in taken.loading:
                num_tokens = self._cache_record.num_loading(self.requests[request_id])
                self._host.begin(request_id, num_tokens, now)
        self._batches.promise(batch, taken)
        tokens = {**dict.fromkeys(batch.decodes, taken.decoded), **taken.emitted}
        self._steps.append(_Step(output, tokens, batch.predicted_s, is_first))
        self._push_status(now, batch.predicted_s)
        return output

    def _begin(self, batch: Batch, num_tokens: int) -> bool:
        """Report the iteration to the heart before its first slow part; return whether it is the
        first of its kind."""
        ids = (*batch.decodes, *(prefill.request_id for prefill in batch.prefills))
        is_first = self._kinds.begin(num_tokens, ids)
        self._beat(batch.predicted_s, is_first)
        return is_first

    def _beat(self, predicted_s: float = 0.0, is_first: bool = False) -> None:
        """Report the steps in flight and the one that begins to the heart."""
        expected_s = sum([step.predicted_s for step in self._steps], predicted_s)
        self._heart.begin(expected_s, is_first or any(step.is_first for step in self._steps))

    def _taken(
        self, batch: Batch, beginning: Container[str], output: SchedulerOutput
    ) -> BatchResult:
        """Return the part of the batch that vLLM scheduled.

        beginning: ids of the prefills that did not run before.
        """
        loading: list[str] = []
        scheduled = output.num_scheduled_tokens
        num_drafted = {name: len(ids) for name, ids in output.scheduled_spec_decode_tokens.items()}
        prefilled: dict[str, int] = {}
        cached: dict[str, int] = {}
        emitted = {request_id: 0 for request_id in batch.decodes if request_id not in scheduled}
        for prefill in batch.prefills:
            request_id = prefill.request_id
            request = self.requests[request_id]
            num_tokens = scheduled.get(request_id, 0)
            prefilled[request_id] = num_tokens - num_drafted.pop(request_id, 0)
            if request_id in beginning and request_id in scheduled:
                cached[request_id] = request.num_computed_tokens - num_tokens
            elif self.is_loading(request):
                loading.append(request_id)
            if request_id in scheduled and not request.is_prefill_chunk:
                emitted[request_id] = 1
        drafted = sum(num_drafted.values())
        return BatchResult(
            batch.predicted_s,
            prefilled,
            emitted,
            decoded=1,
            drafted=drafted,
            cached=cached,
            loading=loading,
        )

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        under_grammar = self._under_grammar(scheduler_output)
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        self._cache_record.refresh()
        now = time.monotonic()
        self._let_go()
        step = self._steps.popleft()
        assert step.output is scheduler_output, "steps end in the order in which they began"
        made = [output for group in outputs.values() for output in group.outputs]
        emitted = {output.request_id: len(output.new_token_ids) for output in made}
        ended = [output for output in made if output.finish_reason is not None]
        for output in ended:
            if output.finish_reason is FinishReason.ERROR and output.request_id in under_grammar:
                # vLLM has sampled a token that the grammar rejects.
                output.finish_reason, output.stop_reason = FinishReason.ABORT, DEAD_END
        finished = [output.request_id for output in ended]
        self._batches.settle(finished, _difference(step.tokens, emitted), now)
        if self._host:
            self._host.end(self.finished_recving_kv_req_ids, now)
            self.policy.loaded(self.finished_recving_kv_req_ids)
        for client_index, output in self._handed_back:
            outputs.setdefault(client_index, EngineCoreOutputs()).outputs.append(output)
        self._handed_back.clear()
        self._kinds.end()
        self._end()
        self._push_status(now)
        return outputs

    def _end(self) -> None:
        if self._steps:
            self._beat()
        else:
            self._heart.end()

    def _under_grammar(self, output: SchedulerOutput) -> set[str]:
        """Return the ids of a step's requests with a grammar."""
        if not output.has_structured_output_requests:
            return set()
        found = map(self.requests.get, output.num_scheduled_tokens)
        return {
            request.request_id for request in found if request and request.use_structured_output
        }

    def _hand_back(self, batch: Batch) -> None:
        for item in batch.handed_back:
            request = self.requests[item.request_id]
            super().finish_requests(item.request_id, RequestStatus.FINISHED_ABORTED)
            self._handed_back.append(
                (
                    request.client_index,
                    EngineCoreOutput(
                        item.request_id,
                        [],
                        finish_reason=FinishReason.ABORT,
                        stop_reason=HAND_BACK_PREFIX + item.reason,
                    ),
                )
            )

    # -- commands and statuses

    def command(self, verb: str, argument: Any) -> Any:
        result = apply_command(self.policy, verb, argument)
        self._push_status(time.monotonic())
        return result

    def _push_status(self, now: float, step_s: float = 0.0) -> None:
        """Send a status if it has news, or if one is due before the step ends that begins."""
        has_news = self.policy.has_news
        if has_news or self._sender.is_due(step_s):
            self._sender.send(self.policy.status(now), has_news=has_news)


def _difference(promised: Mapping[str, int], emitted: Mapping[str, int]) -> dict[str, int]:
    """Return the emitted tokens minus the promised ones by request id, where they differ."""
    if promised == emitted:
        return {}
    ids = promised.keys() | emitted.keys()
    more = {name: emitted.get(name, 0) - promised.get(name, 0) for name in ids}
    return {name: num_tokens for name, num_tokens in more.items() if num_tokens}


def _yield_to_servers() -> None:
    """Lower this process's priority on a CPU, where the model shares cores with the servers."""
    if current_platform.is_cpu():
        os.nice(ENGINE_NICENESS)
