"""Messages are the same on both ends."""

import pytest

from macroserve.core.request import Slo
from macroserve.serving.wire import RouteQuery, decode_to_cell, encode


@pytest.mark.parametrize("slo", [Slo(1.0, 0.1), Slo(1.0, 0.1, 0.2)], ids=["means", "every token"])
def test_a_query_takes_its_targets_along(slo: Slo) -> None:
    query = RouteQuery("r", 0.25, 100, 10, 8, slo, num_streamed_tokens=3, exclude=("a",))
    assert decode_to_cell(encode(query)) == query
    assert query.request(now=5.0).slo == slo
