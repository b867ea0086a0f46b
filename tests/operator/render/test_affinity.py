"""A pod avoids excluded nodes, whatever its template requires of nodes."""

from typing import Any

import pytest
from support.fake_deployment import resource

from macroserve.api.manifest import parse
from macroserve.core.status import Pool
from macroserve.operator.k8s import names
from macroserve.operator.render import instance
from macroserve.operator.render.context import RenderContext
from macroserve.operator.render.instance import excluding

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
ZONE = {"key": "zone", "operator": "In", "values": ["a"]}
GPU = {"key": "gpu", "operator": "Exists"}
OFF = [
    {"key": "metadata.name", "operator": "NotIn", "values": ["gpu-7"]},
    {"key": "metadata.name", "operator": "NotIn", "values": ["gpu-8"]},
]
NODES = frozenset({"gpu-8", "gpu-7"})


def of_terms(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}}}


SPREAD = {"podAntiAffinity": {PREFERRED: []}}
WEIGHED = [{"weight": 1, "preference": {"matchExpressions": [ZONE]}}]
TABLE = {
    "none": ({}, of_terms({"matchFields": OFF})),
    "null": ({"affinity": None}, of_terms({"matchFields": OFF})),
    "of pods": ({"affinity": SPREAD}, {**SPREAD, **of_terms({"matchFields": OFF})}),
    "of nodes, preferred": (
        {"affinity": {"nodeAffinity": {PREFERRED: WEIGHED}}},
        {"nodeAffinity": {PREFERRED: WEIGHED, **of_terms({"matchFields": OFF})["nodeAffinity"]}},
    ),
    "of nodes, null": ({"affinity": {"nodeAffinity": None}}, of_terms({"matchFields": OFF})),
    "one term": (
        {"affinity": of_terms({"matchExpressions": [ZONE]})},
        of_terms({"matchExpressions": [ZONE], "matchFields": OFF}),
    ),
    "any of two terms": (
        {"affinity": of_terms({"matchExpressions": [ZONE]}, {"matchExpressions": [GPU]})},
        of_terms(
            {"matchExpressions": [ZONE], "matchFields": OFF},
            {"matchExpressions": [GPU], "matchFields": OFF},
        ),
    ),
    "its own node": (
        {"affinity": of_terms({"matchFields": [{**OFF[0], "operator": "In"}]})},
        of_terms({"matchFields": [{**OFF[0], "operator": "In"}, *OFF]}),
    ),
    # An empty term, which matches no node and is refused by an API server.
    "an empty term": ({"affinity": of_terms({}, {"matchExpressions": []})},) * 2,
    "no terms": ({"affinity": of_terms()},) * 2,
}


@pytest.mark.parametrize(("spec", "expected"), TABLE.values(), ids=TABLE.keys())
def test_affinity_excludes_the_nodes_in_every_term(
    spec: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert excluding(spec, NODES)["affinity"] == expected.get("affinity", expected)


def test_affinity_without_nodes_is_unchanged() -> None:
    assert excluding({"affinity": SPREAD}, frozenset()) == {"affinity": SPREAD}


def test_excluded_nodes_are_no_part_of_a_pods_revision() -> None:
    document = resource()
    of = RenderContext(parse(document), document, "team", "uid", "engine:1", "IfNotPresent")
    usual = instance.instance_pod(of, "instance-0", "cell-0", Pool.LP)
    excludes = instance.instance_pod(of, "instance-0", "cell-0", Pool.LP, NODES)
    notes = excludes["metadata"]["annotations"]
    assert notes[names.EXCLUDED_NODES] == "gpu-7,gpu-8"
    assert notes[names.REVISION] == usual["metadata"]["annotations"][names.REVISION]
    assert (
        excludes["spec"]["affinity"]["nodeAffinity"]
        == of_terms({"matchFields": OFF})["nodeAffinity"]
    )
    assert "podAntiAffinity" in excludes["spec"]["affinity"]
    assert "nodeAffinity" not in usual["spec"]["affinity"]


def test_template_cannot_say_which_nodes_the_operator_has_excluded() -> None:
    """A pod with other excluded nodes would be recreated forever."""
    claim = {"metadata": {"annotations": {names.EXCLUDED_NODES: "gpu-1"}}}
    document = resource(template=claim)
    of = RenderContext(parse(document), document, "team", "uid", "engine:1", "IfNotPresent")
    pod = instance.instance_pod(of, "instance-0", "cell-0", Pool.LP)
    assert pod["metadata"]["annotations"][names.EXCLUDED_NODES] == ""
