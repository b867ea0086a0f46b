"""``spec.slo`` sets the latency targets of requests, of all or by class."""

from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator

from macroserve.api.api_options import Seconds
from macroserve.api.part import Part
from macroserve.api.validation_errors import must_be, shown
from macroserve.core.request import DEFAULT_CLASS, Slo
from macroserve.core.slo_class import SloClass

ABOVE_ZERO = "a duration above zero such as 5s, 100ms or 1m30s"
SHARE = "a number above 0 and below 1"
CLASS_NAME = f"a DNS label of up to 32 of a-z, 0-9 and -, other than {DEFAULT_CLASS}"
MAX_CLASSES = 16
"""Most classes of one deployment: each has time series of its own."""

Target = Annotated[Seconds, Field(gt=0, description=ABOVE_ZERO)]


class Targets(Part):
    """Targets limit the latency of a request."""

    ttft_s: Target = Field(alias="ttft")
    """Time to first token, seconds."""
    tpot_s: Target = Field(alias="tpot")
    """Mean time per output token after the first, seconds."""
    tbt_s: Target | None = Field(default=None, alias="tbt", description=ABOVE_ZERO)
    """Time between two tokens that 99 % of the gaps in a response keep, seconds."""

    @property
    def slo(self) -> Slo:
        return Slo(self.ttft_s, self.tpot_s, self.tbt_s)


class SloClassTargets(Targets):
    """The requests of an SLO class have targets of their own."""

    name: str = Field(pattern="^[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?$", description=CLASS_NAME)
    attainment: float | None = Field(default=None, gt=0, lt=1, description=SHARE)
    """Share of its requests that should meet all targets; that of all requests by default."""
    share: float | None = Field(default=None, gt=0, lt=1, description=SHARE)
    """Share of all requests that is expected to be of the class, for ``plan`` and ``simulate``."""
    models: list[Annotated[str, Field(min_length=1)]] = Field(
        default_factory=list, description="a list of names"
    )
    """Names of the model by which a request belongs to the class."""

    @field_validator("name")
    @classmethod
    def _not_the_default(cls, name: str) -> str:
        if name == DEFAULT_CLASS:
            raise must_be(CLASS_NAME)
        return name


class SloTargets(Targets):
    """SLO targets are the latency targets of a request, and the share of requests that should meet
    all of them."""

    attainment: float = Field(default=0.9, gt=0, lt=1, description=SHARE)
    """Share of requests that should meet all targets."""
    classes: list[SloClassTargets] = Field(
        default_factory=list,
        max_length=MAX_CLASSES,
        description=f"a list of at most {MAX_CLASSES} SLO classes",
    )
    """Classes with targets of their own, besides the default one with the targets above."""
    allow_request_targets: bool = Field(default=False, description="true or false")
    """The flag lets a request bring targets of its own."""

    @field_validator("classes")
    @classmethod
    def _apart(cls, classes: list[SloClassTargets], info: ValidationInfo) -> list[SloClassTargets]:
        for what, values in (
            ("name", [each.name for each in classes]),
            ("model", [model for each in classes for model in each.models]),
        ):
            if twice := next((value for value in values if values.count(value) > 1), None):
                raise must_be(f"one with unique {what}s: {shown(twice)} is repeated")
        if sum(each.share or 0.0 for each in classes) > 1:
            raise must_be("one whose shares sum to at most 1")
        return classes

    def slo_classes(self) -> tuple[SloClass, ...]:
        """Return the classes besides the default one."""
        return tuple(
            SloClass(
                name=each.name,
                slo=each.slo,
                attainment=each.attainment or self.attainment,
                share=each.share,
                models=tuple(each.models),
            )
            for each in self.classes
        )
