"""``spec.slo``: latency targets of requests, in general or by class."""

from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator

from macroserve.api.api_options import Seconds
from macroserve.api.part import ManifestPart
from macroserve.api.validation_errors import must_be, shown
from macroserve.core.request import DEFAULT_CLASS, Slo
from macroserve.core.slo_class import SloClass

ABOVE_ZERO = "a duration above zero such as 5s, 100ms or 1m30s"
SHARE = "a number above 0 and below 1"
CLASS_NAME = f"a DNS label of up to 32 of a-z, 0-9 and -, other than {DEFAULT_CLASS}"
MAX_CLASSES = 16
"""Most classes of a deployment; each adds time series."""

Target = Annotated[Seconds, Field(gt=0, description=ABOVE_ZERO)]


class Targets(ManifestPart):
    """Latency targets of a request."""

    ttft_s: Target = Field(alias="ttft")
    """Time to first token."""
    tpot_s: Target = Field(alias="tpot")
    """Mean time per output token after the first."""
    tbt_s: Target | None = Field(default=None, alias="tbt", description=ABOVE_ZERO)
    """Time between two tokens that 99 % of the gaps in a response keep."""

    @property
    def slo(self) -> Slo:
        return Slo(self.ttft_s, self.tpot_s, self.tbt_s)


class SloClassTargets(Targets):
    """Latency targets of the requests of an SLO class."""

    name: str = Field(pattern="^[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?$", description=CLASS_NAME)
    attainment: float | None = Field(default=None, gt=0, lt=1, description=SHARE)
    """Share of its requests that should meet all targets; that of all requests by default."""
    share: float | None = Field(default=None, gt=0, lt=1, description=SHARE)
    """Expected share of all requests, for ``plan`` and ``simulate``."""
    models: list[Annotated[str, Field(min_length=1)]] = Field(
        default_factory=list, description="a list of names"
    )
    """Model names by which a request belongs to the class."""

    @field_validator("name")
    @classmethod
    def _not_the_default(cls, name: str) -> str:
        if name == DEFAULT_CLASS:
            raise must_be(CLASS_NAME)
        return name


class SloTargets(Targets):
    """Latency targets, and the share of requests that should meet them."""

    attainment: float = Field(default=0.9, gt=0, lt=1, description=SHARE)
    classes: list[SloClassTargets] = Field(
        default_factory=list,
        max_length=MAX_CLASSES,
        description=f"a list of at most {MAX_CLASSES} SLO classes",
    )
    """Classes other than the default, which has the targets above."""
    allow_request_targets: bool = Field(default=False, description="true or false")
    """Whether a request may set its own targets."""

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
        """Return the classes other than the default."""
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
