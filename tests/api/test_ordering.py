"""An ordering goes with strategies that take requests in order."""

import pytest
from support.manifests import edited

from macroserve.api.manifest import ManifestError, parse
from macroserve.core.strategies import STRATEGIES

ORDER_THEMSELVES = ("unified", "aptserve", "aptserve-s", "econoserve", "macro")


@pytest.mark.parametrize("ordering", ["EDF", "SJF"])
@pytest.mark.parametrize("strategy", ORDER_THEMSELVES)
def test_ordering_of_a_strategy_that_orders_itself_is_refused(strategy: str, ordering: str) -> None:
    with pytest.raises(ManifestError) as refused:
        parse(edited(("spec.scheduling", {"strategy": strategy, "ordering": ordering})))
    assert str(refused.value) == (
        f"spec.scheduling.ordering is '{ordering}', must be Auto with the strategy {strategy}, "
        "which orders requests itself."
    )


def test_ordering_without_a_strategy_is_refused_for_the_default_one() -> None:
    with pytest.raises(ManifestError, match="must be Auto with the strategy unified, which orders"):
        parse(edited(("spec.scheduling.ordering", "SJF")))


@pytest.mark.parametrize("strategy", sorted(STRATEGIES.keys() - set(ORDER_THEMSELVES)))
def test_ordering_of_a_strategy_that_takes_requests_in_order_is_kept(strategy: str) -> None:
    manifest = parse(edited(("spec.scheduling", {"strategy": strategy, "ordering": "Slack"})))
    assert manifest.spec.scheduling.ordering == "Slack"


WITHOUT_TRIAGE = sorted(name for name in STRATEGIES if name != "unified")


@pytest.mark.parametrize("strategy", WITHOUT_TRIAGE)
def test_bound_of_late_requests_is_refused_where_none_are_put_behind_others(strategy: str) -> None:
    with pytest.raises(ManifestError) as refused:
        parse(edited(("spec.scheduling", {"strategy": strategy, "maxLateWait": "20s"})))
    assert str(refused.value) == (
        "spec.scheduling.maxLateWait is '20s', must be left out with the strategy "
        f"{strategy}, which never postpones requests."
    )


def test_bound_of_late_requests_is_refused_where_late_ones_are_refused_at_once() -> None:
    scheduling = {"strategy": "unified", "dropLate": True, "maxLateWait": "20s"}
    with pytest.raises(ManifestError) as refused:
        parse(edited(("spec.scheduling", scheduling)))
    assert str(refused.value) == (
        "spec.scheduling.maxLateWait is '20s', must be left out with dropLate, which refuses late "
        "requests at once."
    )


def test_bound_of_late_requests_is_kept_with_the_default_strategy() -> None:
    manifest = parse(edited(("spec.scheduling.maxLateWait", "20s")))
    assert manifest.spec.scheduling.max_late_wait_s == 20.0
