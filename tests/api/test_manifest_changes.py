"""Some fields of a manifest may change while instances run, others may not."""

import pytest
from support.manifests import AUTOSCALING, GOOD, edited

from macroserve.api.manifest import changes, parse

LIVE = [
    ("spec.instances", 4),
    ("spec.mitosis.upperBound", 6),
    ("spec.priority.highPriorityRatio", 0.5),
    ("spec.autoscaling", AUTOSCALING),
]
FIXED = [
    ("spec.api.toolCallParser", "hermes", "null to 'hermes'"),
    ("metadata.name", "other", "'llama' to 'other'"),
    ("spec.model.source", "org/model", "'tiny' to 'org/model'"),
    ("spec.engine.type", "Emulated", "'vLLM' to 'Emulated'"),
    ("spec.engine.tensorParallel", 2, "1 to 2"),
    ("spec.engine.prefixCaching", False, "'Auto' to 'Off'"),
    ("spec.engine.args.seed", 1, "null to 1"),
    ("spec.scheduling.strategy", "vllm", "'unified' to 'vllm'"),
    ("spec.scheduling.dropLate", True, "false to true"),
    ("spec.scheduling.maxLateWait", "20s", "null to 20.0"),
    ("spec.slo.ttft", "1s", "2.0 to 1.0"),
    ("spec.slo.tbt", "1s", "null to 1.0"),
    ("spec.ingress.replicas", 3, "null to 3"),
    ("spec.template.spec", "x", "null to 'x'"),
]


@pytest.mark.parametrize(("path", "value"), LIVE)
def test_changes_of_live_fields_are_allowed(path: str, value: object) -> None:
    assert changes(parse(GOOD), parse(edited((path, value)))) == ()


@pytest.mark.parametrize(("path", "value", "step"), FIXED)
def test_changes_of_other_fields_give_a_sentence(path: str, value: object, step: str) -> None:
    sentence = f"{path} cannot change from {step} while instances run."
    assert changes(parse(GOOD), parse(edited((path, value), ("spec.instances", 4)))) == (sentence,)
