"""A model may be served with LoRA adapters, each under a name of its own."""

from typing import Annotated

from pydantic import AfterValidator, Field

from macroserve.api.api_options import NOT_EMPTY
from macroserve.api.part import Part
from macroserve.api.validation_errors import must_be, shown


class Adapter(Part):
    """An adapter changes the model for the requests that name it as their model."""

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
