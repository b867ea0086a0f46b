"""Decision table of invalid SLO classes, with the error messages."""

import pytest
from support.manifests import edited

from macroserve.api.manifest import ManifestError, parse

TARGET = "a duration above zero such as 5s, 100ms or 1m30s"
SHARE = "a number above 0 and below 1"
C = {"name": "chat", "ttft": "1s", "tpot": "50ms"}
"""An SLO class."""
CLASS = "a DNS label of up to 32 of a-z, 0-9 and -, other than default"

SENTENCES = [
    (
        edited(("spec.slo.classes", [C, C])),
        "spec.slo.classes is a list, must be one with unique names: 'chat' is repeated.",
    ),
    (
        edited(("spec.slo.classes", [C | {"models": ["llama", "llama"]}])),
        "spec.slo.classes is a list, must be one with unique models: 'llama' is repeated.",
    ),
    (
        edited(("spec.slo.classes", [C | {"models": ["gpt"]}])),
        "spec is a mapping, must be one whose slo.classes name models that are served: 'gpt' is "
        "not.",
    ),
    (
        edited(("spec.slo.classes", [C | {"share": 0.6}, C | {"name": "b", "share": 0.6}])),
        "spec.slo.classes is a list, must be one whose shares sum to at most 1.",
    ),
    (
        edited(("spec.slo.classes", [C | {"name": f"c{i}"} for i in range(17)])),
        "spec.slo.classes is a list, must be a list of at most 16 SLO classes.",
    ),
    (
        edited(("spec.slo.classes", [C | {"name": "default"}])),
        f"spec.slo.classes.0.name is 'default', must be {CLASS}.",
    ),
    (
        edited(("spec.slo.classes", [C | {"name": "Chat"}])),
        f"spec.slo.classes.0.name is 'Chat', must be {CLASS}.",
    ),
    (
        edited(("spec.slo.classes", [{"name": "chat", "ttft": "1s"}])),
        f"spec.slo.classes.0.tpot is missing, must be {TARGET}.",
    ),
    (
        edited(("spec.slo.classes", [C | {"attainment": 1}])),
        f"spec.slo.classes.0.attainment is 1, must be {SHARE}.",
    ),
    (
        edited(("spec.slo.classes", [C | {"priority": 1}])),
        "spec.slo.classes.0.priority is 1, but spec.slo.classes.0 has only the fields "
        "ttft, tpot, tbt, name, attainment, share, models.",
    ),
    (
        edited(("spec.slo.allowRequestTargets", "yes")),
        "spec.slo.allowRequestTargets is 'yes', must be true or false.",
    ),
]


@pytest.mark.parametrize(("document", "sentence"), SENTENCES)
def test_refusal_of_classes_is_one_full_sentence(document: object, sentence: str) -> None:
    with pytest.raises(ManifestError) as refused:
        parse(document)
    assert str(refused.value) == sentence
