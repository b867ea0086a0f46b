"""The worker extends vLLM's own by the ids of the requests that keep hidden states."""

from typing import Any

from vllm.platforms import current_platform
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheSpec

from macroserve.engine.vllm.hybrid import HIDDEN_REQUESTS
from macroserve.engine.vllm.hybrid.attention import hybrid
from macroserve.engine.vllm.hybrid.cache_spec import HybridSpec
from macroserve.engine.vllm.hybrid.calibrate import measure_rho
from macroserve.engine.vllm.hybrid.capability import ATTENTION
from macroserve.engine.vllm.hybrid.layer import HiddenLayer
from macroserve.engine.vllm.hybrid.requests import HiddenRequests

if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as Worker
else:
    from vllm.v1.worker.gpu_worker import Worker


class HybridWorker(Worker):  # type: ignore[misc]
    _requests: HiddenRequests

    def load_model(self, **kwargs: Any) -> None:
        super().load_model(**kwargs)
        self._requests = HiddenRequests(self.model_runner)
        known = ATTENTION[self.model_config.architecture]
        layers = self.vllm_config.compilation_config.static_forward_context
        blocks: list[Any] = [m for m in self.model_runner.get_model().modules() if type(m) is known]
        if {id(block.attn) for block in blocks} != {id(layer) for layer in layers.values()}:
            raise RuntimeError(
                f"{self.model_config.architecture} has attention beside {known.__name__}, which "
                "the hybrid cache does not know: set spec.engine.hybridCache to Off"
            )
        for block in blocks:
            self._install(block.attn, HiddenLayer(block, block.attn.num_kv_heads, block.head_dim))

    def _install(self, attention: Any, hidden: HiddenLayer) -> None:
        """Replace the backend by one class for all layers, as vLLM groups layers by it."""
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
        return specs

    def measure_rho(self) -> float:
        layers = self.vllm_config.compilation_config.static_forward_context.values()
        return measure_rho([*layers], self.cache_config.block_size)

    def execute_model(self, scheduler_output: SchedulerOutput) -> Any:
        self._requests.ids = getattr(scheduler_output, HIDDEN_REQUESTS)
        return super().execute_model(scheduler_output)
