"""vLLM's scheduler for batches that are decided elsewhere.

vLLM's ``schedule()`` gets only the chosen requests, in order, with a token budget that leaves no
choice. Block allocation, loads from host memory, sampling, grammars and outputs remain vLLM's.
"""

from collections.abc import Iterable, Mapping
from functools import partial

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.request_queue import FCFSRequestQueue
from vllm.v1.request import Request, RequestStatus

from macroserve.core.batch import Batch


class ExactScheduler(AsyncScheduler):
    """A scheduler of vLLM that executes a given batch."""

    def num_tokens_of(self, batch: Batch) -> int:
        """Return the number of tokens in the batch, drafted ones included."""
        num_tokens = batch.num_tokens
        if self.num_spec_tokens:
            for request_id in batch.decodes:
                request = self.requests[request_id]
                num_tokens += request.num_tokens_with_spec + request.num_output_placeholders
                num_tokens -= request.num_computed_tokens + 1
            # vLLM takes a prefill of one token for a decode and adds drafted tokens.
            num_tokens += self.num_spec_tokens * sum(p.num_tokens == 1 for p in batch.prefills)
        return min(num_tokens, self.max_num_scheduled_tokens)

    def preempt(self, requests: Iterable[Request], now: float) -> None:
        """Free the blocks of running requests, and of waiting ones with loaded blocks."""
        for request in requests:
            # vLLM resumes a preempted request only after its tokens in flight.
            if request.status == RequestStatus.RUNNING:
                self.running.remove(request)
                self._preempt_request(request, now)
            elif self._holds_kv_blocks(request):
                self._drop_loaded(request)

    def is_loading(self, request: Request) -> bool:
        """Return whether blocks of a request's prompt are being loaded."""
        is_held = request.status == RequestStatus.WAITING_FOR_REMOTE_KVS
        return is_held and request.request_id not in self.finished_recving_kv_req_ids

    def _drop_loaded(self, request: Request) -> None:
        """Drop the loaded blocks of a request that has not begun."""
        self._handle_blocked_waiting_request(request)
        self._inflight_prefills.discard(request)
        self.kv_cache_manager.free(request)
        request.num_computed_tokens = 0
        self.kv_holding_waiting.remove_request(request)
        self.waiting.prepend_request(request)

    def schedule_exactly(
        self, batch: Batch, num_tokens: int, throttle_prefills: bool
    ) -> SchedulerOutput:
        """Let vLLM schedule the batch and nothing else.

        vLLM schedules running requests in order, then waiting ones, each up to the remaining
        budget: decodes, then begun prefills, then new ones. Incomplete begun prefills are limited
        one by one; only the last new one may be incomplete, so the budget determines it.
        """
        requests = self.requests
        prefills = [requests[p.request_id] for p in batch.prefills]
        begun = [r for r in prefills if r.status == RequestStatus.RUNNING]
        pieces = {
            p.request_id: p.num_tokens
            for p, request in zip(batch.prefills, prefills, strict=True)
            if request.status == RequestStatus.RUNNING
            and request.num_computed_tokens + p.num_tokens < request.num_tokens
        }
        beginning = [r for r in prefills if r.status != RequestStatus.RUNNING]
        chosen = [*(requests[request_id] for request_id in batch.decodes), *begun]
        held_running: list[Request] = []
        if len(chosen) < len(self.running):
            ids = {request.request_id for request in chosen}
            held_running = [r for r in self.running if r.request_id not in ids]
            if self.max_num_encoder_input_tokens:
                for request in held_running:
                    # A request held back within an image would occupy the encoder cache; its image
                    # is computed again if its slot has been taken.
                    self.encoder_cache_manager.free(request)
        loaded = [r for r in beginning if self._holds_kv_blocks(r)]
        held_waiting, held_loading = self.waiting, self.kv_holding_waiting
        if beginning:
            held_waiting.remove_requests(beginning)
            held_loading.remove_requests(loaded)
        budget, max_active = self.max_num_scheduled_tokens, self.max_num_active_reqs
        self.running, self.kv_holding_waiting = chosen, FCFSRequestQueue(loaded)
        self.waiting = FCFSRequestQueue(r for r in beginning if r not in loaded)
        self.max_num_scheduled_tokens = num_tokens
        self.max_num_active_reqs = max(0, max_active - len(held_running))
        if pieces:
            # Only then, as vLLM calls it for each request.
            self._reserve_prefill_lookahead = partial(self._piece_of, pieces)
        try:
            return super().schedule(throttle_prefills)
        finally:
            vars(self).pop("_reserve_prefill_lookahead", None)
            self.max_num_scheduled_tokens, self.max_num_active_reqs = budget, max_active
            self.running = held_running + self.running
            # Requests that vLLM did not begin, has preempted, or first loads blocks for.
            held_waiting.prepend_requests(self.waiting)
            held_loading.prepend_requests(self.kv_holding_waiting)
            self.waiting, self.kv_holding_waiting = held_waiting, held_loading

    def _piece_of(
        self,
        pieces: Mapping[str, int],
        request: Request,
        num_computed_tokens: int,
        num_new_tokens: int,
    ) -> int:
        """Return the tokens that vLLM may schedule for a request; vLLM applies this bound last.

        pieces: tokens of each begun prefill that the batch does not complete, by request id.
        """
        piece = min(num_new_tokens, pieces.get(request.request_id, num_new_tokens))
        return super()._reserve_prefill_lookahead(request, num_computed_tokens, piece)
