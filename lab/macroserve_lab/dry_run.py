"""A vLLM scheduler without a model, with fake tokens.

The number of accepted drafted tokens only depends on a request's length.
"""

import gc
from collections import deque
from collections.abc import Container
from itertools import count
from time import process_time

import torch
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from macroserve.core.status import Pool
from macroserve.engine.settings import EngineSettings
from macroserve.engine.vllm.options import engine_args, stock_args
from macroserve.engine.vllm.scheduler import MacroserveScheduler

NUM_BLOCKS = 100_000
"""Cache blocks, always enough."""
TOKEN = 7
"""The token of every step."""


class DryRun:
    """A run that schedules each step while the previous one, or those of the pipeline's other
    stages, are in flight.

    scheduler: class of the scheduler, vLLM's or ours.
    """

    def __init__(self, settings: EngineSettings, scheduler: type[Scheduler]) -> None:
        is_ours = scheduler is MacroserveScheduler
        args = engine_args(settings, Pool.LP, None) if is_ours else stock_args(settings)
        config = args.create_engine_config()
        register_all_kvcache_specs(config)
        config.cache_config.num_gpu_blocks = NUM_BLOCKS
        size = config.cache_config.block_size
        spec = FullAttentionSpec(block_size=size, num_kv_heads=1, head_size=64, dtype=torch.float32)
        self._scheduler = scheduler(
            vllm_config=config,
            kv_cache_config=KVCacheConfig(NUM_BLOCKS, [], [KVCacheGroupSpec(["layer"], spec)]),
            structured_output_manager=StructuredOutputManager(config),
            block_size=size,
            hash_block_size=size,
        )
        init_none_hash(sha256)
        self._hasher = get_request_block_hasher(size, sha256)
        self._max_ahead = max(1, settings.pipeline_parallel - 1)
        self._in_flight: deque[tuple[SchedulerOutput, frozenset[str]]] = deque()
        self._ids = count()

    def add(self, num_prompt_tokens: int, max_new_tokens: int) -> None:
        params = SamplingParams(max_tokens=max_new_tokens, temperature=0, ignore_eos=True)
        number = next(self._ids)
        prompt = [number] * num_prompt_tokens  # without a shared prefix
        request = Request(f"{number}", prompt, params, None, block_hasher=self._hasher)
        self._scheduler.add_request(request)

    @property
    def num_decoding(self) -> int:
        return sum(not request.is_prefill_chunk for request in self._scheduler.running)

    @property
    def ahead(self) -> float:
        """Return the share of our scheduler's steps that began while another was in flight."""
        assert isinstance(self._scheduler, MacroserveScheduler)
        in_flight = self._scheduler.policy.in_flight
        return in_flight.num_ahead / in_flight.num_begun

    @property
    def num_unfinished(self) -> int:
        return len(self._scheduler.requests)

    @property
    def num_waiting(self) -> int:
        return len(self._scheduler.waiting)

    def step(self) -> float:
        """Schedule a step and finish the previous one; return the CPU time of both, seconds."""
        began_s = process_time()
        output = self._scheduler.schedule()
        elapsed_s = process_time() - began_s
        requests = self._scheduler.requests
        emitting = [i for i in output.num_scheduled_tokens if not requests[i].is_prefill_chunk]
        self._in_flight.append((output, frozenset(emitting)))
        if len(self._in_flight) > self._max_ahead:
            before, emitting = self._in_flight.popleft()
            made_up = self._made_up(before, emitting)
            began_s = process_time()
            self._scheduler.update_from_output(before, made_up)
            elapsed_s += process_time() - began_s
        return elapsed_s

    def run_out(self) -> int:
        """Run steps until all requests have ended; return the number of steps."""
        num_steps = 0
        while self.num_unfinished:
            self.step()
            num_steps += 1
        return num_steps

    def _made_up(self, output: SchedulerOutput, emitting: Container[str]) -> ModelRunnerOutput:
        ids, drafted = list(output.num_scheduled_tokens), output.scheduled_spec_decode_tokens

        def tokens_of(request_id: str) -> list[int]:
            request = self._scheduler.requests.get(request_id)
            if request is None or request_id not in emitting:
                return []
            return [TOKEN] * (1 + request.num_tokens % (1 + len(drafted.get(request_id, ()))))

        rows = {name: row for row, name in enumerate(ids)}
        tokens = [tokens_of(name) for name in ids]
        return ModelRunnerOutput(req_ids=ids, req_id_to_index=rows, sampled_token_ids=tokens)


def without_collections() -> None:
    """Exclude existing objects from garbage collection, so that it disturbs no step."""
    gc.collect()
    gc.freeze()
