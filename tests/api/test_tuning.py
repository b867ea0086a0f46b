"""The numbers of the papers go with the strategies that read them."""

import pytest
from support.manifests import edited

from macroserve.api.manifest import ManifestError, parse
from macroserve.api.tuning import TuningSettings
from macroserve.core.strategies import STRATEGIES
from macroserve.core.tuning import DEFAULT_TUNING, Tuning

GIVEN = {
    "chunkTokens": (1024, "chunk_tokens", 1024),
    "lateValue": (0.4, "late_value", 0.4),
    "kvPadding": (0.2, "kv_padding", 0.2),
    "kvReserve": (0, "kv_reserve", 0.0),
    "lendingBuffer": (1, "lending_buffer", 1.0),
    "offloadThreshold": ("250ms", "offload_threshold_s", 0.25),
    "lpBatchSize": (64, "lp_batch_size", 64),
    "hpFreeShare": (0.5, "hp_free_share", 0.5),
}


def scheduling(strategy, **tuning):
    return ("spec.scheduling", {"strategy": strategy, "tuning": tuning})


def test_tuning_settings_are_those_of_the_core() -> None:
    assert TuningSettings().tuning == DEFAULT_TUNING
    assert TuningSettings.model_fields.keys() == Tuning.__dataclass_fields__.keys()
    assert {str(field.alias) for field in TuningSettings.model_fields.values()} == GIVEN.keys()


@pytest.mark.parametrize("setting", GIVEN)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_setting_that_a_strategy_does_not_read_is_refused(strategy, setting) -> None:
    value, number, expected = GIVEN[setting]
    document = edited(scheduling(strategy, **{setting: value}))
    if number in STRATEGIES[strategy].tunables:
        tuning = parse(document).spec.scheduling.tuning.tuning
        assert tuning == Tuning(**{number: expected})
        return
    with pytest.raises(ManifestError) as refused:
        parse(document)
    assert str(refused.value) == (
        f"spec.scheduling.tuning is a mapping, must be one without {setting}, which the strategy "
        f"{strategy} does not use."
    )


@pytest.mark.parametrize(
    ("strategy", "setting", "value", "allowed"),
    [
        ("sarathi", "chunkTokens", 0, "a whole number of at least 1"),
        ("sarathi", "chunkTokens", 1.5, "a whole number of at least 1"),
        ("aptserve", "lateValue", 1.1, "a number from 0 to 1"),
        ("econoserve", "kvPadding", -0.1, "a number from 0 to 1"),
        ("econoserve", "kvReserve", 1, "a number from 0 to below 1"),
        ("econoserve", "lendingBuffer", "0.1", "a number from 0 to 1"),
        ("ascendra", "offloadThreshold", 5, "a duration such as 0s or 100ms"),
        ("ascendra", "lpBatchSize", True, "a whole number of at least 1"),
        ("ascendra", "hpFreeShare", 1.0, "a number from 0 to below 1"),
    ],
)
def test_setting_out_of_its_bounds_is_refused(strategy, setting, value, allowed) -> None:
    with pytest.raises(ManifestError) as refused:
        parse(edited(scheduling(strategy, **{setting: value})))
    assert str(refused.value).startswith(f"spec.scheduling.tuning.{setting} is ")
    assert str(refused.value).endswith(f", must be {allowed}.")


def test_unknown_setting_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ManifestError, match=r"has only the fields chunkTokens, lateValue,"):
        parse(edited(scheduling("sarathi", chunks=5)))
