"""Classes are drawn by their shares, and change nothing else."""

from collections import Counter
from dataclasses import replace

import pytest
from support.slo_classes import BATCH, INTERACTIVE

from macroserve.workload.arrivals import Arrival
from macroserve.workload.class_mix import ClassMix

ARRIVALS = [Arrival(float(index), 10, 20) for index in range(2000)]
CHAT, REPORT = replace(INTERACTIVE, share=0.5), replace(BATCH, share=0.2)


def test_shares_of_requests_are_those_of_the_classes() -> None:
    mix = ClassMix((CHAT, replace(BATCH, name="idle"), REPORT))
    found = mix.applied(ARRIVALS, seed=1)
    assert [arrival._replace(slo_class=None) for arrival in found] == ARRIVALS
    counts = Counter(arrival.slo_class for arrival in found)
    assert counts.keys() == {None, CHAT, REPORT}
    shares = [counts[each] / len(ARRIVALS) for each in (CHAT, REPORT, None)]
    assert shares == pytest.approx([0.5, 0.2, 0.3], abs=0.05)
    assert found == mix.applied(ARRIVALS, seed=1) != mix.applied(ARRIVALS, seed=2)


def test_classes_without_shares_get_no_request() -> None:
    assert ClassMix((INTERACTIVE, BATCH)).applied(ARRIVALS, seed=1) == ARRIVALS


def test_class_with_a_share_of_one_gets_all_requests() -> None:
    whole = replace(CHAT, share=1.0)
    assert {arrival.slo_class for arrival in ClassMix((whole,)).applied(ARRIVALS, 1)} == {whole}


def test_shares_of_more_than_one_together_are_refused() -> None:
    with pytest.raises(ValueError, match=r"sum to at most 1, got 1\.1"):
        ClassMix((replace(CHAT, share=0.9), REPORT))
