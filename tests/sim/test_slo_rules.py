from itertools import accumulate

import pytest
from support.records import record

from macroserve.core.request import Slo
from macroserve.sim.results import as_client
from macroserve_lab.slo_rules import as_aptserve, as_ecoserve


@pytest.mark.parametrize(
    ("first_s", "last_s", "attained"),
    [
        (2.0, 3.0, True),
        (2.1, 3.0, False),
        (1.0, 2.0, True),
        (1.0, 2.01, False),
    ],
)
def test_client_rule_needs_both_targets(first_s, last_s, attained):
    request = record()
    request.emit([first_s])
    request.emit([first_s + 0.1] * 3)
    assert not request.ended
    request.emit([last_s] * 7)
    assert request.ended
    assert (request.first_s, request.last_s, request.num_tokens) == (first_s, last_s, 21)
    assert as_client(request) is attained


@pytest.mark.parametrize("slo_rule", [as_client, as_ecoserve, as_aptserve])
def test_single_token_meets_any_tpot(slo_rule):
    request = record(num_output=1)
    request.emit([1.9])
    assert request.ended and slo_rule(request)
    request = record(num_output=1)
    request.emit([2.1])
    assert request.ended and not slo_rule(request)


@pytest.mark.parametrize(
    ("decoding_s", "client", "ecoserve"),
    [(0.6, True, True), (1.9, False, True), (2.1, False, False)],
)
def test_ecoserve_rule_counts_the_wait_for_decoding_as_ttft(decoding_s, client, ecoserve):
    request = record()
    request.emit([0.5])
    request.decoding_s = decoding_s
    request.emit([decoding_s + 0.9] * 10)
    assert (as_client(request), as_ecoserve(request)) == (client, ecoserve)


@pytest.mark.parametrize(("num_slow", "attained"), [(0, True), (1, True), (2, False)])
def test_aptserve_rule_forgives_one_gap_in_a_hundred(num_slow, attained):
    request = record(num_output=101, slo=Slo(2.0, 0.1, 0.2))
    gaps_s = [0.5 if index < num_slow else 0.05 for index in range(100)]
    times = list(accumulate(gaps_s, initial=1.0))
    for part in (times[:1], times[1:60], times[60:]):
        request.emit(part)
    assert request.gaps_s == pytest.approx(gaps_s)
    assert as_aptserve(request) is as_client(request) is attained
    assert as_ecoserve(request), "its targets are for means"
