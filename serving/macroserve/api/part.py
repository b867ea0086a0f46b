"""Base of all parts of a manifest: frozen, strict, camelCase outside, snake_case inside."""

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class ManifestPart(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", alias_generator=to_camel)
