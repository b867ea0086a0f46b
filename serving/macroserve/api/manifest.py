"""The ``MacroInstance`` resource, with which users describe a deployment.

``parse`` takes a mapping (from YAML or the API server) and returns frozen models with snake_case
names and units. Each field has a phrase for its valid values; each problem becomes one sentence
with the field's path, the given value and that phrase.
"""

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from macroserve.api.api_options import DNS_NAME, NOT_EMPTY, ApiOptions, DnsName, Seconds
from macroserve.api.engine import COUNT, Count, EngineSpec
from macroserve.api.model_cache import ONE_SOURCE, ModelCache, with_one_source
from macroserve.api.part import ManifestPart
from macroserve.api.slo import ABOVE_ZERO, SloTargets, Target
from macroserve.api.tuning import TuningSettings
from macroserve.api.validation_errors import must_be, sentences, shown
from macroserve.core.request import Slo
from macroserve.core.scaling.fleet import DesiredFleet
from macroserve.core.scaling.mitosis import Bounds
from macroserve.core.slo_class import SloClass
from macroserve.core.strategies import STRATEGIES
from macroserve.core.strategy import Strategy

TINY = "tiny"
"""``spec.model.source`` of the small test model that Macroserve builds itself."""

DEFAULT_REPLICAS = 2
"""Number of ingress replicas, so that one can fail."""

LIVE_PARTS = ("instances", "mitosis", "priority", "autoscaling")
"""Fields of a spec that may change while instances run; instances depend on all others."""


class ManifestError(ValueError):
    """Problems of an invalid manifest; the text has one line, a sentence, per problem."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def _auto_or_ratio(value: object) -> object:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1:
        return value
    if value != "Auto":
        raise ValueError
    return value


def _strategy_name(value: object) -> object:
    if not isinstance(value, str) or value not in STRATEGIES:
        raise ValueError
    return value


def _ordering(value: object) -> object:
    if not isinstance(value, str) or not (value in NAMED_ORDERINGS or _FUNCTION.fullmatch(value)):
        raise ValueError
    return value


NAMED_ORDERINGS = ("Auto", "FCFS", "EDF", "Slack", "SJF", "LJF")
ORDERINGS = f"{', '.join(NAMED_ORDERINGS)} or a function such as package.module:function"
_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)

Text = Annotated[str, Field(min_length=1, description=NOT_EMPTY)]
Delay = Annotated[Seconds, Field(description="a duration such as 0s, 300s or 1m30s")]


class Metadata(ManifestPart):
    """Name of the resource; other metadata (namespace, labels...) is ignored."""

    model_config = ConfigDict(extra="ignore")

    name: str = Field(
        pattern="^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$",
        description="a DNS label: up to 63 of a-z, 0-9 and -, with no - at either end",
    )


class Adapter(ManifestPart):
    """A LoRA adapter, used by requests that give its name as their model."""

    name: str = Field(min_length=1, description=NOT_EMPTY)
    source: str = Field(min_length=1, description=NOT_EMPTY)
    """Folder with an adapter, or name on the Hugging Face hub."""


def _named_once(adapters: list[Adapter]) -> list[Adapter]:
    names = [adapter.name for adapter in adapters]
    for name in names:
        if names.count(name) > 1:
            raise must_be(f"a list with {shown(name)} only once")
    return adapters


Adapters = Annotated[
    list[Adapter],
    AfterValidator(_named_once),
    Field(description="a list of mappings with name, source"),
]


class ModelSpec(ManifestPart):
    source: Text
    """Folder with a checkpoint, name on the Hugging Face hub, or ``TINY``."""
    served_name: Text | None = Field(default=None, description=NOT_EMPTY)
    """Name in the OpenAI API; the resource's name by default."""
    max_model_len: int = Field(ge=16, description="a whole number of tokens, at least 16")
    """Longest prompt and response together, tokens."""
    adapters: Adapters = Field(default_factory=list)
    cache: Annotated[ModelCache | None, AfterValidator(with_one_source)] = Field(
        default=None, description=ONE_SOURCE
    )


class Mitosis(ManifestPart):
    """Bounds on the number of instances of a cell (N_l and N_u of EcoServe's mitosis)."""

    lower_bound: Count
    upper_bound: Count

    @field_validator("upper_bound")
    @classmethod
    def _can_divide(cls, upper: int, info: ValidationInfo) -> int:
        # A cell splits when it would grow to upper + 1, which must be enough for two cells.
        least = 2 * info.data.get("lower_bound", 1) - 1
        if upper < least:
            raise must_be(f"at least 2 * spec.mitosis.lowerBound - 1, which is {least}")
        return upper


class Priority(ManifestPart):
    """Share of a cell's instances that run urgent prefills (Ascendra's HP pool)."""

    high_priority_ratio: Annotated[Literal["Auto"] | float, PlainValidator(_auto_or_ratio)] = Field(
        default="Auto", description="Auto or a number from 0 to below 1"
    )


class Scheduling(ManifestPart):
    strategy: Annotated[str, PlainValidator(_strategy_name)] = Field(
        default="unified", description=f"one of {', '.join(STRATEGIES)}"
    )
    ordering: Annotated[str, PlainValidator(_ordering)] = Field(
        default="Auto", description=ORDERINGS
    )
    """Order of the waiting requests: the strategy's own, a named one, or the user's function as
    ``package.module:function`` (see ``engine.ordering``)."""
    drop_late: bool = Field(default=False, description="true or false")
    """Whether waiting requests past their TTFT target are dropped (Ascendra, under overload)."""
    max_late_wait_s: Target | None = Field(
        default=None, alias="maxLateWait", description=ABOVE_ZERO
    )
    """Longest wait of a late request, seconds; by default 8 times its TTFT target. Requests that
    would wait longer are refused."""
    max_queue_wait_s: Target = Field(default=300.0, alias="maxQueueWait")
    """Longest predicted wait, seconds; requests that would wait longer are refused."""
    tuning: TuningSettings = TuningSettings()

    @field_validator("ordering")
    @classmethod
    def _may_order(cls, ordering: str, info: ValidationInfo) -> str:
        name = info.data.get("strategy")
        if ordering != "Auto" and name in STRATEGIES and not STRATEGIES[name].takes_orderings:
            raise must_be(f"Auto with the strategy {name}, which orders requests itself")
        return ordering

    @field_validator("max_late_wait_s")
    @classmethod
    def _is_of_triage(cls, wait_s: float | None, info: ValidationInfo) -> float | None:
        name = info.data.get("strategy")
        if wait_s is not None and name in STRATEGIES and not STRATEGIES[name].triage:
            raise must_be(f"left out with the strategy {name}, which never postpones requests")
        if wait_s is not None and info.data.get("drop_late"):
            raise must_be("left out with dropLate, which refuses late requests at once")
        return wait_s

    @field_validator("tuning")
    @classmethod
    def _has_effect(cls, tuning: TuningSettings, info: ValidationInfo) -> TuningSettings:
        name = info.data.get("strategy")
        if name in STRATEGIES and (alien := tuning.not_read_by(STRATEGIES[name])):
            raise must_be(f"one without {alien[0]}, which the strategy {name} does not use")
        return tuning


class Stabilization(ManifestPart):
    """Time for which a recommendation must hold before it is applied."""

    up_s: Delay = Field(default=0.0, alias="up")
    down_s: Delay = Field(default=300.0, alias="down")


class Autoscaling(ManifestPart):
    min_instances: Count
    max_instances: Count
    stabilization: Stabilization = Stabilization()

    @field_validator("max_instances")
    @classmethod
    def _not_below_min(cls, most: int, info: ValidationInfo) -> int:
        least = info.data.get("min_instances", 1)
        if most < least:
            raise must_be(f"at least spec.autoscaling.minInstances, which is {least}")
        return most


def _template() -> Any:
    return Field(default=None, description="a mapping, a pod template")


class Ingress(ManifestPart):
    replicas: Count | None = Field(default=None, description=COUNT)
    """Fixed number of replicas."""
    max_replicas: Count | None = Field(default=None, description=COUNT)
    """Largest number of replicas of a HorizontalPodAutoscaler; None without one."""
    min_replicas: Count | None = Field(default=None, description=COUNT)
    api_keys_secret: DnsName | None = Field(default=None, description=DNS_NAME)
    """Kubernetes Secret whose values, one or more keys each, authorize clients; None admits all."""
    stream_interval: Count = 1
    """Tokens of a stream in one event, as vLLM's argument of that name."""
    template: dict[Any, Any] | None = _template()

    @field_validator("max_replicas")
    @classmethod
    def _instead_of_replicas(cls, most: int, info: ValidationInfo) -> int:
        if info.data.get("replicas") is not None:
            raise must_be("left out with spec.ingress.replicas, which fixes the number")
        return most

    @field_validator("min_replicas")
    @classmethod
    def _within_max(cls, least: int, info: ValidationInfo) -> int:
        most = info.data.get("max_replicas", least)
        if most is None:
            raise must_be("left out without spec.ingress.maxReplicas")
        if least > most:
            raise must_be(f"at most spec.ingress.maxReplicas, which is {most}")
        return least

    @property
    def replica_bounds(self) -> tuple[int, int]:
        """Return the least and the largest number of replicas, equal without an autoscaler."""
        if self.max_replicas is None:
            replicas = self.replicas or DEFAULT_REPLICAS
            return replicas, replicas
        return self.min_replicas or min(DEFAULT_REPLICAS, self.max_replicas), self.max_replicas


class Head(ManifestPart):
    template: dict[Any, Any] | None = _template()


class Spec(ManifestPart):
    model: ModelSpec
    engine: EngineSpec
    slo: SloTargets
    mitosis: Mitosis
    priority: Priority = Priority()
    scheduling: Scheduling = Scheduling()
    autoscaling: Autoscaling | None = None
    instances: Count  # after autoscaling, which its validator reads
    ingress: Ingress = Ingress()
    head: Head = Head()
    api: ApiOptions = ApiOptions()
    template: dict[Any, Any] | None = _template()
    """Pod template for Kubernetes, passed through unchanged."""

    @field_validator("engine")
    @classmethod
    def _keeps_no_hidden_states(cls, engine: EngineSpec, info: ValidationInfo) -> EngineSpec:
        model: ModelSpec | None = info.data.get("model")
        if model and model.adapters and engine.hybrid_cache == "On":
            raise must_be(
                "one whose hybridCache is Auto or Off, because spec.model.adapters change the keys "
                "and values that are computed from hidden states"
            )
        return engine

    @field_validator("engine")
    @classmethod
    def _fetches_into_the_cache(cls, engine: EngineSpec, info: ValidationInfo) -> EngineSpec:
        model: ModelSpec | None = info.data.get("model")
        if model and model.cache and engine.args.get("download_dir") is not None:
            raise must_be("one whose args have no download_dir, because spec.model.cache sets it")
        return engine

    @field_validator("instances")
    @classmethod
    def _within_autoscaling(cls, instances: int, info: ValidationInfo) -> int:
        scaling: Autoscaling | None = info.data.get("autoscaling")
        if scaling and not scaling.min_instances <= instances <= scaling.max_instances:
            bounds = f"{scaling.min_instances} to {scaling.max_instances}"
            raise must_be(f"within spec.autoscaling's bounds, which are {bounds}")
        return instances


class Manifest(ManifestPart):
    api_version: Literal["macroserve.io/v1alpha1"] = Field(description="macroserve.io/v1alpha1")
    kind: Literal["MacroInstance"] = Field(description="MacroInstance")
    metadata: Metadata
    spec: Spec

    @field_validator("spec")
    @classmethod
    def _adapters_apart(cls, spec: Spec, info: ValidationInfo) -> Spec:
        metadata: Metadata | None = info.data.get("metadata")
        own = spec.model.served_name or (metadata and metadata.name)
        for adapter in spec.model.adapters:
            if adapter.name in (own, *spec.api.served_names):
                name = shown(adapter.name)
                raise must_be(f"one whose model.adapters have unique names: {name} is not")
        return spec

    @field_validator("spec")
    @classmethod
    def _classes_of_models(cls, spec: Spec, info: ValidationInfo) -> Spec:
        metadata: Metadata | None = info.data.get("metadata")
        own = spec.model.served_name or (metadata and metadata.name)
        known = {own, *spec.api.served_names, *(each.name for each in spec.model.adapters)}
        for each in spec.slo.classes:
            if unknown := next((model for model in each.models if model not in known), None):
                raise must_be(
                    f"one whose slo.classes name models that are served: {shown(unknown)} is not"
                )
        return spec

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def served_name(self) -> str:
        """Return the model's name in the OpenAI API."""
        return self.spec.model.served_name or self.name

    @property
    def served_names(self) -> tuple[str, ...]:
        """Return all model names that a request may give; the first is the one in responses."""
        return tuple(dict.fromkeys((self.served_name, *self.spec.api.served_names)))

    @property
    def slo(self) -> Slo:
        """Return the targets of the default class."""
        return self.spec.slo.slo

    @property
    def slo_classes(self) -> tuple[SloClass, ...]:
        """Return the SLO classes other than the default."""
        return self.spec.slo.slo_classes()

    @property
    def strategy(self) -> Strategy:
        return STRATEGIES[self.spec.scheduling.strategy]

    def desired_fleet(
        self, instances: int | None = None, auto_ratio: float | None = None
    ) -> DesiredFleet:
        """Return the fleet that the manifest asks for.

        instances: replaces ``spec.instances`` if an autoscaler sets the number.
        auto_ratio: share of HP instances if the ratio is Auto; the strategy's own by default.
        """
        ratio = self.spec.priority.high_priority_ratio
        if not self.strategy.uses_pools:
            ratio = 0.0
        elif ratio == "Auto":
            ratio = self.strategy.high_priority_ratio if auto_ratio is None else auto_ratio
        mitosis = self.spec.mitosis
        return DesiredFleet(
            self.spec.instances if instances is None else instances,
            Bounds(mitosis.lower_bound, mitosis.upper_bound),
            float(ratio),
        )


def parse(document: object) -> Manifest:
    """Return the manifest in ``document``, a mapping as YAML or JSON gives it.

    Raises ManifestError with all problems.
    """
    try:
        return Manifest.model_validate(document)
    except ValidationError as error:
        raise ManifestError(sentences(error, Manifest)) from None


def changes(old: Manifest, new: Manifest) -> tuple[str, ...]:
    """Return one sentence for each field of ``new`` that may not change while instances run."""
    before = dict(_leaves("", old.model_dump(by_alias=True)))
    after = dict(_leaves("", new.model_dump(by_alias=True)))
    return tuple(
        f"{path} cannot change from {shown(before.get(path))} to {shown(after.get(path))} "
        "while instances run."
        for path in {**before, **after}
        if before.get(path) != after.get(path)
        and not any(f"{path}.".startswith(f"spec.{part}.") for part in LIVE_PARTS)
    )


def _leaves(path: str, value: object) -> Iterator[tuple[str, object]]:
    if not isinstance(value, dict):
        yield path, value
        return
    for key, inner in value.items():
        yield from _leaves(f"{path}.{key}" if path else key, inner)


def leaves_ratio_open(manifest: Manifest) -> bool:
    """Return whether the share of HP instances is Auto and the strategy uses pools."""
    is_auto = manifest.spec.priority.high_priority_ratio == "Auto"
    return is_auto and manifest.strategy.uses_pools
