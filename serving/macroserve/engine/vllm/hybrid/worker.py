"""vLLM's worker, extended by hidden states."""

from typing import Any

from vllm.platforms import current_platform
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheSpec

from macroserve.engine.vllm.hybrid import HIDDEN_REQUESTS
from macroserve.engine.vllm.hybrid.attention import hybrid
from macroserve.engine.vllm.hybrid.cache_spec import HybridSpec
from macroserve.engine.vllm.hybrid.calibrate import measure_rho
from macroserve.engine.vllm.hybrid.capability import ATTENTION
from macroserve.engine.vllm.hybrid.layer import HiddenLayer
from macroserve.engine.vllm.hybrid.requests import HiddenRequests
from macroserve.engine.vllm.hybrid.scratch_pages import Scratch

if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as Worker
else:
    from vllm.v1.worker.gpu_worker import Worker


REBUILT_PAGES = 4
"""Memory for recomputing one layer's keys and values, in units of the scratch pages: the pages, the
hidden states, their product, and its parts."""


class HybridWorker(Worker):  # type: ignore[misc]
    _requests: HiddenRequests
    _scratch: Scratch
    _page_bytes: int

    def load_model(self, **kwargs: Any) -> None:
        super().load_model(**kwargs)
        self._requests = HiddenRequests(self.model_runner)
        known = ATTENTION[self.model_config.architecture]
        blocks: list[Any] = [m for m in self.model_runner.get_model().modules() if type(m) is known]
        if {id(block.attn) for block in blocks} != {id(layer) for layer in self._layers}:
            raise RuntimeError(
                f"{self.model_config.architecture} has attention other than {known.__name__}, "
                "which the hybrid cache does not support: set spec.engine.hybridCache to Off"
            )
        for block in blocks:
            self._install(block.attn, HiddenLayer(block, block.attn.num_kv_heads, block.head_dim))

    def _install(self, attention: Any, hidden: HiddenLayer) -> None:
        """Replace the backend by one class for all layers, by which vLLM groups them."""
        attention.attn_backend = hybrid(attention.attn_backend)
        implementation = attention.attn_backend.get_impl_cls()
        state = vars(attention.impl) | {"hidden": hidden, "requests": self._requests}
        attention.impl = implementation.__new__(implementation)
        vars(attention.impl).update(state)

    def get_kv_cache_spec(self) -> dict[str, KVCacheSpec]:
        ranks = self.parallel_config.tensor_parallel_size
        hidden_size = self.model_config.get_hidden_size() // ranks
        specs = super().get_kv_cache_spec()
        for name, spec in specs.items():
            assert isinstance(spec, FullAttentionSpec), f"{name} keeps {spec}"
            specs[name] = HybridSpec.of(spec, hidden_size)
        page = next(iter(specs.values()))
        self._page_bytes = page.page_size_bytes
        self._scratch = Scratch(self.model_config.max_model_len, page.block_size)
        for layer in self._layers:
            layer.impl.scratch = self._scratch
        return specs

    def determine_available_memory(self) -> int:
        """Return the bytes for the pool. Unless they are configured, the memory for recomputing
        keys and values is subtracted."""
        available = super().determine_available_memory()
        if self.cache_config.kv_cache_memory_bytes:
            return available
        return available - REBUILT_PAGES * self._scratch.num_pages * self._page_bytes

    def initialize_from_config(self, kv_cache_config: KVCacheConfig) -> None:
        """Allocate the pool and the scratch pages, so that a device that is too small fails at the
        start."""
        super().initialize_from_config(kv_cache_config)
        self._scratch.pages(self._layers[0].kv_cache)

    def measure_rho(self) -> float:
        return measure_rho(self._layers, self._scratch, self.model_config.max_model_len)

    @property
    def _layers(self) -> list[Any]:
        """vLLM's attention layers."""
        return [*self.vllm_config.compilation_config.static_forward_context.values()]

    def execute_model(self, scheduler_output: SchedulerOutput) -> Any:
        self._requests.ids = getattr(scheduler_output, HIDDEN_REQUESTS)
        return super().execute_model(scheduler_output)
