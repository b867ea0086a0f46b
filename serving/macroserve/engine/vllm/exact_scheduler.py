"""vLLM's scheduler carries out a batch that is decided elsewhere.

vLLM's own ``schedule()`` sees exactly the chosen requests, in order, with a token budget that
leaves no choice. Block allocation, loads from the memory of the host, sampling, grammars and
outputs stay vLLM's.
"""

from collections.abc import Iterable, Mapping

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.request_queue import FCFSRequestQueue
from vllm.v1.request import Request, RequestStatus

from macroserve.core.batch import Batch


class ExactScheduler(AsyncScheduler):
    """The scheduler schedules a given batch and nothing else."""

    _pieces: Mapping[str, int] = {}
    """Tokens of each begun prefill that the batch cuts."""

    def num_tokens_of(self, batch: Batch) -> int:
        """Return the tokens that the batch computes, drafted ones included."""
        num_tokens = batch.num_tokens
        if self.num_spec_tokens:
            for request_id in batch.decodes:
                request = self.requests[request_id]
                num_tokens += request.num_tokens_with_spec + request.num_output_placeholders
                num_tokens -= request.num_computed_tokens + 1
            # vLLM adds drafted tokens to a prefill of one, which is then as long as a decode.
            num_tokens += self.num_spec_tokens * sum(p.num_tokens == 1 for p in batch.prefills)
        return min(num_tokens, self.max_num_scheduled_tokens)

    def preempt(self, requests: Iterable[Request], now: float) -> None:
        """Take the blocks of requests that run, or that could begin with what was loaded."""
        for request in requests:
            # vLLM does not begin a preempted request again before its tokens in flight are out.
            if request.status == RequestStatus.RUNNING:
                self.running.remove(request)
                self._preempt_request(request, now)
            elif self._holds_kv_blocks(request):
                self._drop_loaded(request)

    def is_loading(self, request: Request) -> bool:
        """Return whether blocks of a request's prompt are still being loaded."""
        is_held = request.status == RequestStatus.WAITING_FOR_REMOTE_KVS
        return is_held and request.request_id not in self.finished_recving_kv_req_ids

    def _drop_loaded(self, request: Request) -> None:
        """Give up what was loaded for a request that has not begun."""
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

        vLLM takes running requests in order, then waiting ones, each as whole as the budget
        allows: decodes first, then begun prefills, then new ones. Begun ones that the batch cuts
        get no more than their pieces. Of the new ones only the last may be cut, so the total budget
        determines their shares.
        """
        requests = self.requests
        prefills = [requests[p.request_id] for p in batch.prefills]
        begun = [r for r in prefills if r.status == RequestStatus.RUNNING]
        self._pieces = {
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
                    # Held back within an image, it would keep the encoder's cache from those that
                    # are scheduled; its image is computed again if another has taken the place.
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
        try:
            return super().schedule(throttle_prefills)
        finally:
            self.max_num_scheduled_tokens, self.max_num_active_reqs = budget, max_active
            self.running = held_running + self.running
            # vLLM did not begin these, or preempted them, or loads blocks for them first.
            held_waiting.prepend_requests(self.waiting)
            held_loading.prepend_requests(self.kv_holding_waiting)
            self.waiting, self.kv_holding_waiting = held_waiting, held_loading

    def _reserve_prefill_lookahead(
        self, request: Request, num_computed_tokens: int, num_new_tokens: int
    ) -> int:
        """Return the tokens that vLLM may schedule for a request, which it asks last of all its
        bounds."""
        if self._pieces:
            piece = self._pieces.get(request.request_id, num_new_tokens)
            num_new_tokens = min(num_new_tokens, piece)
        return super()._reserve_prefill_lookahead(request, num_computed_tokens, num_new_tokens)
