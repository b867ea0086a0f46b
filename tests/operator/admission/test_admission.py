"""The webhook accepts valid writes, and refuses others with a clear message."""

import copy
from typing import Any

import pytest
from bad_manifests import GOOD, Case, merged, refused_by
from support import crd

from macroserve.api.manifest import ManifestError
from macroserve.operator.admission.spec import manifest_of, review

LLAMA = crd.defaulted(merged(GOOD, {"metadata": {"name": "llama", "namespace": "team"}}))
AUTOSCALING = {"spec": {"autoscaling": {"minInstances": 1, "maxInstances": 4}}}
BROKEN = {"spec": {"engine": {"args": {"model": "x"}}}}
WHY_BROKEN = (
    "spec.engine.args has the key 'model', which must be left out, because spec.model.source "
    "sets it."
)


def scale(replicas: int | None) -> dict[str, Any]:
    spec = {} if replicas is None else {"replicas": replicas}
    return {"apiVersion": "autoscaling/v1", "kind": "Scale", "spec": spec}


def test_good_manifest_is_accepted() -> None:
    assert review("CREATE", None, LLAMA, "") == ()
    assert review("UPDATE", LLAMA, merged(LLAMA, {"spec": {"instances": 2}}), "") == ()


def test_manifest_with_a_status_is_accepted_without_it() -> None:
    assert review("CREATE", None, {**LLAMA, "status": {"ready": "3/3"}}, "") == ()
    assert manifest_of({**LLAMA, "status": {"ready": "3/3"}}).name == "llama"


@pytest.mark.parametrize("case", refused_by("admission"), ids=str)
def test_bad_manifests_are_refused(case: Case) -> None:
    if case.scale is None:
        sentences = review("CREATE", None, crd.defaulted(case.document), "")
    else:
        sentences = review("UPDATE", crd.defaulted(case.document), scale(case.scale), "scale")
    assert len(sentences) == 1
    assert case.missing_in(sentences[0]) == [], sentences


@pytest.mark.parametrize("case", refused_by("cel", "schema", "strict"), ids=str)
def test_manifest_that_breaks_a_cel_rule_is_refused(case: Case) -> None:
    """The webhook repeats all CEL rules but the bounds that only protect the cluster."""
    if case.scale is not None:
        sentences = review("UPDATE", case.before, scale(case.scale), "scale")
    elif case.update:
        sentences = review("UPDATE", case.before, case.document, "")
    else:
        sentences = review("CREATE", None, case.document, "")
    known_to_the_crd_alone = case.name in ("a million instances", "containers that are names")
    assert bool(sentences) != known_to_the_crd_alone
    assert all(sentence.endswith(".") for sentence in sentences)


@pytest.mark.parametrize("case", refused_by("Degraded"), ids=str)
def test_manifest_that_only_the_cluster_can_judge_is_accepted(case: Case) -> None:
    assert review("CREATE", None, crd.defaulted(case.document), "") == ()


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        (
            "model",
            {"source": "org/model"},
            "spec.model.source cannot change from 'tiny' to 'org/model': apply another "
            "MacroInstance and delete this one.",
        ),
        (
            "engine",
            {"type": "vLLM"},
            "spec.engine.type cannot change from 'Emulated' to 'vLLM': apply another "
            "MacroInstance and delete this one.",
        ),
    ],
)
def test_change_of_model_or_engine_is_refused(path: str, value: object, sentence: str) -> None:
    assert review("UPDATE", LLAMA, merged(LLAMA, {"spec": {path: value}}), "") == (sentence,)


ROLLED_OUT = [
    {"engine": {"tensorParallel": 2, "args": {"seed": 1}}},
    {"slo": {"ttft": "1s"}},
    {"scheduling": {"strategy": "ecoserve"}},
    {"ingress": {"replicas": 5}},
    {"template": {"spec": {"nodeSelector": {"gpu": "l20"}}}},
    {"model": {"maxModelLen": 4096}},
]


@pytest.mark.parametrize("change", ROLLED_OUT, ids=str)
def test_change_that_can_be_rolled_out_is_accepted(change: dict[str, Any]) -> None:
    assert review("UPDATE", LLAMA, merged(LLAMA, {"spec": change}), "") == ()


def test_manifest_with_several_problems_gets_a_sentence_for_each() -> None:
    bad = merged(LLAMA, {"spec": {"instances": 0, "slo": {"ttft": "5"}}})
    assert len(review("CREATE", None, bad, "")) == 2
    assert len(review("UPDATE", LLAMA, bad, "")) == 2


def test_invalid_object_of_an_earlier_version_can_be_labeled_and_deleted() -> None:
    """The object was accepted by an earlier version and would be refused now."""
    broken = merged(LLAMA, BROKEN)
    assert review("UPDATE", broken, merged(broken, {"metadata": {"labels": {"a": "b"}}}), "") == ()
    deleting = merged(broken, {"metadata": {"deletionTimestamp": "2026-03-01T12:00:00Z"}})
    assert review("UPDATE", broken, merged(deleting, {"spec": {"instances": 2}}), "") == ()
    assert review("UPDATE", broken, merged(broken, {"spec": {"instances": 2}}), "") == (WHY_BROKEN,)


@pytest.mark.parametrize(
    ("operation", "new", "subresource"),
    [("DELETE", None, ""), ("DELETE", {}, ""), ("UPDATE", {"spec": {}}, "status")],
)
def test_write_to_another_subresource_is_accepted(
    operation: str, new: dict[str, Any] | None, subresource: str
) -> None:
    assert review(operation, LLAMA, new, subresource) == ()


NAME = (
    "metadata.name is {}, must begin with a letter and have at most 53 characters, because "
    "Services are named after it."
)


@pytest.mark.parametrize(
    ("name", "shown"), [("7b", "'7b'"), ("a" * 53, None), ("a" * 54, f"'{'a' * 54}'")]
)
def test_name_that_services_cannot_have_is_refused(name: str, shown: str | None) -> None:
    expected = (NAME.format(shown),) if shown else ()
    assert review("CREATE", None, merged(LLAMA, {"metadata": {"name": name}}), "") == expected


GPUS = (
    "spec.engine.tensorParallel is 2, must be at most the nvidia.com/gpu of the container engine "
    "in spec.template, which is 1."
)


@pytest.mark.parametrize(
    ("container", "expected"),
    [
        ({"name": "engine", "resources": {"limits": {"nvidia.com/gpu": 1}}}, (GPUS,)),
        ({"name": "engine", "resources": {"limits": {"nvidia.com/gpu": "1"}}}, (GPUS,)),
        ({"name": "engine", "resources": {"limits": {"nvidia.com/gpu": 2}}}, ()),
        ({"name": "engine", "resources": {"limits": {"nvidia.com/gpu": 4}}}, ()),
        ({"name": "engine", "resources": {"limits": {"nvidia.com/gpu": "all"}}}, ()),
        ({"name": "engine", "resources": {"limits": {"amd.com/gpu": 1}}}, ()),
        ({"name": "engine", "resources": {"limits": None}}, ()),
        ({"name": "engine"}, ()),
        ({"name": "other", "resources": {"limits": {"nvidia.com/gpu": 1}}}, ()),
    ],
    ids=str,
)
def test_template_with_the_wrong_number_of_devices_is_refused(
    container: object, expected: tuple[str, ...]
) -> None:
    template = {"spec": {"containers": [container]}}
    spec = {"engine": {"type": "vLLM", "tensorParallel": 2}, "template": template}
    assert review("CREATE", None, merged(LLAMA, {"spec": spec}), "") == expected
    stages = {**spec, "engine": {"type": "vLLM", "pipelineParallel": 2}}
    refused = tuple(
        problem.replace("tensorParallel", "tensorParallel times pipelineParallel")
        for problem in expected
    )
    assert review("CREATE", None, merged(LLAMA, {"spec": stages}), "") == refused
    emulated = {**spec, "engine": {"tensorParallel": 2}}
    assert review("CREATE", None, merged(LLAMA, {"spec": emulated}), "") == ()


@pytest.mark.parametrize("template", [{}, {"spec": None}, {"spec": {"containers": None}}])
def test_template_without_containers_is_accepted(template: object) -> None:
    spec = {"engine": {"type": "vLLM"}, "template": template}
    assert review("CREATE", None, merged(LLAMA, {"spec": spec}), "") == ()


def test_manifest_that_cannot_run_raises_its_problems() -> None:
    with pytest.raises(ManifestError) as refused:
        manifest_of(merged(LLAMA, BROKEN))
    assert refused.value.problems == (WHY_BROKEN,)


SCALED = merged(LLAMA, AUTOSCALING)
BY_HAND = (
    "spec.autoscaling scales llama within 1 to 4 instances: edit its bounds, or take "
    "spec.autoscaling out to scale by hand."
)
NONE = (
    "spec.replicas is 0, must be a whole number of at least 1: delete the MacroInstance to stop it."
)


@pytest.mark.parametrize(
    ("resource", "replicas", "expected"),
    [
        (LLAMA, 1, ()),
        (LLAMA, 7, ()),
        (LLAMA, 0, (NONE,)),
        (LLAMA, None, (NONE,)),
        (SCALED, 1, ()),
        (SCALED, 2, (BY_HAND,)),
        (SCALED, 9, (BY_HAND,)),
    ],
)
def test_scale_subresource_out_of_bounds_is_refused(
    resource: dict[str, Any], replicas: int | None, expected: tuple[str, ...]
) -> None:
    before = copy.deepcopy(resource)
    assert review("UPDATE", resource, scale(replicas), "scale") == expected
    assert resource == before
