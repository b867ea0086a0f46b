"""Network policies decide which pods reach which ports of a MacroInstance's pods."""

from typing import Any

import pytest
from support.fake_deployment import resource

from macroserve.api.manifest import parse
from macroserve.core.status import Pool
from macroserve.operator.k8s import names
from macroserve.operator.render import head, ingress, instance, network
from macroserve.operator.render.context import RenderContext
from macroserve.operator.render.served_network import ServedNetwork

OPERATOR = ("macroserve-system", {"app.kubernetes.io/name": "macroserve-operator"})
OPERATOR[1]["app.kubernetes.io/component"] = "operator"
PROMETHEUS = ("monitoring", {"app.kubernetes.io/name": "prometheus"})
STRANGER = ("team", {"app": "stranger"})
OTHER_TEAM = ("other", names.selector("llama", "ingress"))
FALSE_OPERATOR = ("other", OPERATOR[1])
OTHER_MODEL = ("team", names.selector("other", "ingress"))
Pod = tuple[str, dict[str, str]]


def context(served: ServedNetwork | None = None) -> RenderContext:
    document = resource()
    return RenderContext(
        manifest=parse(document),
        document=document,
        namespace="team",
        uid="uid-llama",
        image="engine:1",
        image_pull_policy="Always",
        operator_namespace="macroserve-system",
        network=served or ServedNetwork(),
    )


def own(component: str) -> Pod:
    of = context()
    pod = {
        "head": head.deployment(of)["spec"]["template"],
        "ingress": ingress.deployment(of)["spec"]["template"],
        "instance": instance.instance_pod(of, "instance-0", "cell-0", Pool.LP),
    }[component]
    return "team", pod["metadata"]["labels"]


def reaches(source: Pod, component: str, port: int, served: ServedNetwork | None = None) -> bool:
    """Decide as a network plugin: a pod that a policy selects takes what any rule allows."""
    _, labels = own(component)
    selecting = [
        policy["spec"]
        for policy in network.policies(context(served))
        if _matches(policy["spec"]["podSelector"], labels)
    ]
    assert len(selecting) == 1
    return any(
        _has(rule, "ports", lambda allowed: allowed == {"port": port, "protocol": "TCP"})
        and _has(rule, "from", lambda peer: _is_peer(peer, source))
        for rule in selecting[0]["ingress"]
    )


def _has(rule: dict[str, Any], part: str, is_met: Any) -> bool:
    return not rule.get(part) or any(map(is_met, rule[part]))


def _is_peer(peer: dict[str, Any], source: Pod) -> bool:
    namespace, labels = source
    if "namespaceSelector" in peer:
        named = {"kubernetes.io/metadata.name": namespace}
        is_there = _matches(peer["namespaceSelector"], named)
    else:
        is_there = namespace == "team"
    return is_there and _matches(peer.get("podSelector", {}), labels)


def _matches(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    return selector.get("matchLabels", {}).items() <= labels.items()


PUBLIC, PRIVATE, HEAD, CELL, LAST_CELL = 8000, 8001, 8100, 8200, 8299
TOKENS, CONTROL = 8000, 8001
RAY = 6379

TABLE: list[tuple[str, int, set[str]]] = [
    # component, port, who reaches it
    ("ingress", PUBLIC, {"ingress", "head", "instance", "operator", "prometheus", "anybody"}),
    ("ingress", PRIVATE, {"ingress", "prometheus"}),
    ("ingress", RAY, set()),
    ("head", HEAD, {"ingress", "operator"}),
    ("head", CELL, {"ingress"}),
    ("head", LAST_CELL, {"ingress"}),
    ("head", LAST_CELL + 1, set()),
    ("head", RAY, set()),
    ("instance", TOKENS, {"ingress", "head", "operator", "prometheus"}),
    ("instance", CONTROL, {"ingress", "head", "operator", "prometheus"}),
    ("instance", RAY, set()),
]


@pytest.mark.parametrize(("component", "port", "expected"), TABLE)
def test_port_of_a_part_is_reached_by_these_pods_alone(
    component: str, port: int, expected: set[str]
) -> None:
    sources = {name: own(name) for name in ("ingress", "head", "instance")}
    sources |= {"operator": OPERATOR, "prometheus": PROMETHEUS}
    found = {name for name, pod in sources.items() if reaches(pod, component, port)}
    others = (STRANGER, OTHER_TEAM, FALSE_OPERATOR, OTHER_MODEL)
    reached = {reaches(pod, component, port) for pod in others}
    assert reached == {"anybody" in expected}
    assert found == expected - {"anybody"}


def test_network_policy_with_clients_admits_these_alone() -> None:
    served = ServedNetwork(clients_from=({"podSelector": {"matchLabels": {"app": "gateway"}}},))
    assert reaches(("team", {"app": "gateway"}), "ingress", PUBLIC, served)
    assert not reaches(STRANGER, "ingress", PUBLIC, served)
    assert not reaches(STRANGER, "ingress", PRIVATE, served)


def test_network_policy_without_monitoring_admits_only_the_parts() -> None:
    served = ServedNetwork(metrics_from=())
    for component, port in (("ingress", PRIVATE), ("instance", CONTROL)):
        assert reaches(own("ingress"), component, port, served)
        assert not reaches(PROMETHEUS, component, port, served)
        assert not reaches(STRANGER, component, port, served)


@pytest.mark.parametrize("component", ["head", "ingress", "instance"])
def test_network_policies_that_are_disabled_allow_all_callers(component: str) -> None:
    assert reaches(STRANGER, component, RAY, ServedNetwork(enabled=False))


@pytest.mark.parametrize("component", ["head", "ingress", "instance"])
def test_network_policy_has_a_rule_for_every_port(component: str) -> None:
    of = context()
    pod = {
        "head": head.deployment(of)["spec"]["template"],
        "ingress": ingress.deployment(of)["spec"]["template"],
        "instance": instance.instance_pod(of, "instance-0", "cell-0", Pool.LP),
    }[component]
    for port in pod["spec"]["containers"][0]["ports"]:
        assert reaches(own("ingress"), component, port["containerPort"])


def test_cell_ports_are_those_that_the_network_policy_opens() -> None:
    pod = head.deployment(context())["spec"]["template"]
    args = pod["spec"]["containers"][0]["args"]
    assert args[args.index("--cell-ports") + 1] == f"{CELL}-{LAST_CELL}"


def test_network_policies_are_owned_by_the_macroinstance() -> None:
    for policy in network.policies(context()):
        (owner,) = policy["metadata"]["ownerReferences"]
        assert owner["uid"] == "uid-llama"
        assert policy["spec"]["policyTypes"] == ["Ingress"]
