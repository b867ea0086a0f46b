"""A tag carries what an ingress tells an instance about a request."""

import json

import pytest

from macroserve.core.request import Slo
from macroserve.engine.tag import RequestTag

SLOS = [Slo(1.0, 0.1), Slo(1.0, 0.1, 0.2)]


@pytest.mark.parametrize("slo", SLOS, ids=["of means", "of every token"])
def test_request_tag_after_the_wire_is_unchanged(slo: Slo) -> None:
    tag = RequestTag(
        route_id="route", age_s=0.25, slo=slo, num_streamed_tokens=3, slo_class="batch"
    )
    args = json.loads(json.dumps(tag.to_args(), allow_nan=False))
    assert RequestTag.from_args(args, "another", Slo(9.0, 9.0)) == tag
    request = tag.to_request("r", 100, 10, now=5.0)
    assert (request.request_id, request.route_id) == ("r", "route")
    assert (request.slo, request.arrival_s, request.num_streamed_tokens) == (slo, 4.75, 3)
    assert request.slo_class == "batch"


@pytest.mark.parametrize("args", [None, {}, {"other": 1}])
def test_request_without_a_tag_has_the_instance_targets(args: dict | None) -> None:
    untagged = RequestTag(route_id="r", age_s=0.0, slo=SLOS[1])
    assert RequestTag.from_args(args, "r", SLOS[1]) == untagged
