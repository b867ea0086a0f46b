"""The deployment to simulate, from a manifest and the options for model and devices."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from pydantic.alias_generators import to_camel

from macroserve.api.manifest import Manifest
from macroserve.cli.deployment_options import DeploymentOptions
from macroserve.core.engine_sizes import sizes_on
from macroserve.core.hybrid_cache import (
    HybridCacheFacts,
    decide_hybrid_cache,
    fit_of,
    keeping_hidden,
)
from macroserve.core.scaling.mitosis import Bounds
from macroserve.core.shapes import ModelShape
from macroserve.core.strategies import STRATEGIES
from macroserve.core.strategy import Strategy
from macroserve.engine.json_file import json_object
from macroserve.engine.ordering import ordered_strategy
from macroserve.engine.parallelism import check_layers
from macroserve.local.manifest_file import model_folder
from macroserve.sim.hardware.devices import DEVICES
from macroserve.sim.hardware.host import VLLM_AHEAD
from macroserve.sim.hardware.links import LINKS
from macroserve.sim.hardware.models import ARCHITECTURES, MODELS, shape_of
from macroserve.sim.scenario import ClusterSpec, Scenario

UNQUANTIZED = ("auto", "float16", "bfloat16", "float32")
"""Values of ``kv_cache_dtype`` with which vLLM does not quantize keys and values."""
UNNAMED = "a model without an architecture"


class SimulatedModel(NamedTuple):
    """Shape of a model, and its facts that decide about hidden states."""

    shape: ModelShape
    facts: HybridCacheFacts
    """Facts of the model alone, in an engine of one device."""


@dataclass(frozen=True, slots=True)
class SimulatedDeployment:
    """The fields of a manifest that have an effect in virtual time."""

    manifest: Manifest
    options: DeploymentOptions
    model: SimulatedModel

    @classmethod
    def of(cls, manifest: Manifest, options: DeploymentOptions) -> "SimulatedDeployment":
        """Read the model. Raises ValueError if it cannot be read."""
        return cls(manifest, options, read_model(manifest, options.model))

    def scenario(self) -> Scenario:
        """Return the deployment as the manifest describes it.

        Raises ValueError for an unusable ordering, for hidden states that cannot be kept, and for a
        pipeline longer than the model.
        """
        num_stages = self.manifest.spec.engine.pipeline_parallel
        check_layers(num_stages, self.model.shape.num_layers)
        return self._scenario(num_stages)

    def to_plan(self) -> tuple[Scenario, list[Strategy]]:
        """Return the deployment without the parameters that a plan decides, and the strategies to
        try.

        Raises ValueError for an ordering, which the plan decides with the strategy, and for hidden
        states that cannot be kept.
        """
        if self.manifest.spec.scheduling.ordering != "Auto":
            raise ValueError(
                "the plan chooses the strategy, with its own order: leave "
                "spec.scheduling.ordering out"
            )
        # Pipelines are not among the candidates.
        whole = self._scenario(num_stages=1)
        # The memory for the cache depends on the number of devices.
        cluster = replace(whole.cluster, kv_bytes=None)
        planned = replace(whole, cluster=cluster, high_priority_ratio=0.0, bounds=None)
        return planned, [self._as_served(each, num_stages=1) for each in STRATEGIES.values()]

    def not_simulated(self) -> Iterator[str]:
        """Yield a sentence for each given field that would change the results but is ignored."""
        engine = self.manifest.spec.engine
        if engine.dtype == "float32":
            yield "spec.engine.dtype is not simulated: the devices' rates are for 16 bits"
        if engine.args:
            names = ", ".join(map(to_camel, engine.args))
            yield f"spec.engine.args is not simulated: {names}"
        if engine.host_cache_bytes is not None:
            yield (
                "spec.engine.hostCacheMemory is not simulated: a prompt finds the blocks in the "
                "devices' caches alone"
            )

    def _scenario(self, num_stages: int) -> Scenario:
        manifest = self.manifest
        scheduling, mitosis = manifest.spec.scheduling, manifest.spec.mitosis
        ordered = ordered_strategy(manifest.strategy.name, scheduling.ordering)
        return Scenario(
            self._cluster(num_stages),
            self._as_served(ordered, num_stages),
            manifest.slo,
            high_priority_ratio=manifest.desired_fleet().high_priority_ratio,
            tuning=scheduling.tuning.tuning,
            drop_late=scheduling.drop_late,
            max_late_wait_s=scheduling.max_late_wait_s,
            bounds=Bounds(mitosis.lower_bound, mitosis.upper_bound),
            prefix_caching=manifest.spec.engine.prefix_caching != "Off",
        )

    def _as_served(self, strategy: Strategy, num_stages: int) -> Strategy:
        """Return the strategy as the manifest's engines run it, with or without hidden states."""
        engine, shape = self.manifest.spec.engine, self.model.shape
        backend = engine.args.get("attention_backend")
        is_quantized = (
            self.model.facts.is_quantized
            or bool(engine.args.get("quantization"))
            or engine.args.get("kv_cache_dtype", "auto") not in UNQUANTIZED
        )
        facts = replace(
            self.model.facts,
            attention_backend=str(backend).upper() if backend else None,
            is_quantized=is_quantized,
            has_adapters=bool(self.manifest.spec.model.adapters),
            drafts_tokens=bool(engine.args.get("speculative_config")),
            moves_blocks=engine.host_cache_bytes is not None,
            shares_prefixes=engine.prefix_caching == "On",
            num_ranks=engine.tensor_parallel,
            num_stages=num_stages,
            num_context_ranks=engine.args.get("decode_context_parallel_size") or 1,
        )
        decision = decide_hybrid_cache(
            strategy,
            engine.hybrid_cache,
            lambda: fit_of(facts, lambda: shape.hidden_size / shape.kv_size),
        )
        return keeping_hidden(strategy, decision.on)

    def _cluster(self, num_stages: int) -> ClusterSpec:
        """Return one cell of all instances."""
        engine, device = self.manifest.spec.engine, DEVICES[self.options.device]
        sizes = sizes_on(device.name, device.memory_bytes).given(
            engine.block_size, engine.max_num_seqs, engine.max_batch_tokens
        )
        kv_bytes = None
        if engine.kv_cache_bytes is not None:
            kv_bytes = engine.kv_cache_bytes * engine.tensor_parallel * num_stages
        return ClusterSpec(
            model=self.model.shape,
            device=device,
            link=LINKS[self.options.link],
            ranks=engine.tensor_parallel,
            stages=num_stages,
            num_instances=self.manifest.spec.instances,
            kv_bytes=kv_bytes,
            block_size=sizes.block_size,
            max_model_len=self.manifest.spec.model.max_model_len,
            max_num_seqs=-(-sizes.max_num_seqs // num_stages),
            max_batch_tokens=sizes.max_batch_tokens,
            host=VLLM_AHEAD,
        )


def read_model(manifest: Manifest, model: str | None) -> SimulatedModel:
    """Return the model of ``--model``, or else the manifest's.

    model: name in ``MODELS``, or a folder with a ``config.json``.

    Raises ValueError for a model that cannot be read.
    """
    if shape := MODELS.get(model or ""):
        return _with_facts(shape, {"architectures": [ARCHITECTURES[model or ""]]})
    path = Path(model or model_folder(manifest)) / "config.json"
    try:
        config = json_object(path)
        return _with_facts(shape_of(config), config)
    except ValueError as error:
        raise ValueError(
            f"the model's shape cannot be read from {path} ({error}): name one with --model, a "
            f"folder with a config.json or one of {', '.join(MODELS)}"
        ) from None


def _with_facts(shape: ModelShape, config: Mapping[str, Any]) -> SimulatedModel:
    text: Mapping[str, Any] = config.get("text_config") or config
    facts = HybridCacheFacts(
        architecture=next(iter(config.get("architectures") or ()), UNNAMED),
        hidden_size=shape.hidden_size,
        has_latent=shape.latent is not None,
        has_window=shape.window is not None,
        has_dual_chunks=bool(text.get("dual_chunk_attention_config")),
        is_quantized=bool(text.get("quantization_config") or config.get("quantization_config")),
    )
    return SimulatedModel(shape, facts)
