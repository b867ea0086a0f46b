"""``spec.scheduling.tuning``: the numbers that the papers leave open."""

from pydantic import Field

from macroserve.api.api_options import Seconds
from macroserve.api.engine import COUNT
from macroserve.api.part import ManifestPart
from macroserve.core.strategy import Strategy
from macroserve.core.tuning import Tuning

UP_TO_1 = "a number from 0 to 1"
BELOW_1 = "a number from 0 to below 1"
DURATION = "a duration such as 0s or 100ms"


class TuningSettings(ManifestPart):
    """Overrides of ``Tuning``'s numbers; None keeps the default."""

    chunk_tokens: int | None = Field(default=None, ge=1, description=COUNT)
    late_value: float | None = Field(default=None, ge=0, le=1, description=UP_TO_1)
    kv_padding: float | None = Field(default=None, ge=0, le=1, description=UP_TO_1)
    kv_reserve: float | None = Field(default=None, ge=0, lt=1, description=BELOW_1)
    lending_buffer: float | None = Field(default=None, ge=0, le=1, description=UP_TO_1)
    offload_threshold_s: Seconds | None = Field(
        default=None, alias="offloadThreshold", description=DURATION
    )
    lp_batch_size: int | None = Field(default=None, ge=1, description=COUNT)
    hp_free_share: float | None = Field(default=None, ge=0, lt=1, description=BELOW_1)

    @property
    def tuning(self) -> Tuning:
        return Tuning(**self.model_dump(exclude_none=True))

    @classmethod
    def read_by(cls, strategy: Strategy) -> set[str]:
        """Return the settings that a strategy reads, by manifest name."""
        fields = cls.model_fields.items()
        return {str(field.alias) for name, field in fields if name in strategy.tunables}

    def not_read_by(self, strategy: Strategy) -> list[str]:
        """Return the given settings that the strategy does not read, by manifest name."""
        given = self.model_dump(exclude_none=True, by_alias=True)
        return [name for name in given if name not in self.read_by(strategy)]
