"""The actuator carries out actions one by one; a failed one delays few others."""

import asyncio
from collections.abc import Iterable
from typing import cast

import aiohttp
import pytest
from support.fake_api_server import OWN_GRACE_S
from support.fake_deployment import HEAD_ADDRESS, NAMESPACE, FakeDeployment, resource

from macroserve.core.scaling.fleet import (
    Action,
    Attach,
    DeleteCell,
    DeployCell,
    Drain,
    Migrate,
    Relabel,
    Start,
    Stop,
)
from macroserve.core.status import Pool
from macroserve.operator.apply.actuator import DRAINED_GRACE_S, Actuator, Effect
from macroserve.operator.apply.owned_objects import DesiredObjects
from macroserve.operator.apply.tokens import TokenSecret
from macroserve.operator.k8s import names
from macroserve.operator.k8s.client import ApiError
from macroserve.operator.k8s.kinds import POD
from macroserve.operator.k8s.names import Key
from macroserve.operator.observe.observation import Observation
from macroserve.operator.observe.pods import instance_pods
from macroserve.operator.plan.fleet import Detach, RepairAction
from macroserve.operator.reconcile.head_connection import HeadConnection

LP, HP = Pool.LP, Pool.HP
TOKENS = TokenSecret({"secret": "s", "admin-token": "a", "key-control": "c"})


@pytest.fixture
def fake() -> FakeDeployment:
    """Return four pods that are ready and in no cell, and no cell."""
    fake = FakeDeployment()
    fake.apply(resource(4))
    asyncio.run(carry_out(fake, [Start(f"instance-{n}", "cell-0", LP) for n in range(4)]))
    fake.kubelets()
    return fake


async def carry_out(fake: FakeDeployment, actions: Iterable[Action | RepairAction]) -> Effect:
    """Carry actions out in a reconcile that observes the present state."""
    found = fake.resource()
    assert found is not None
    world, key = fake.world, Key(NAMESPACE, "llama")
    form = DesiredObjects(found, world.options, world.kinds)
    pods = list(world.store.of(POD, key).values())
    answer = await HeadConnection(world.api, world.http, key).ask(
        HEAD_ADDRESS, TOKENS.ring, lambda report: False
    )
    observation = Observation(
        now=fake.now,
        name="llama",
        namespace=NAMESPACE,
        uid="uid-llama",
        generation=1,
        deleting=False,
        manifest=form.manifest,
        revision=form.revision,
        pods=instance_pods(pods, "uid-llama"),
        head=None,
        ingress=None,
        report=answer.report if answer else None,
        running_cells=answer.report.running if answer else None,
        status={},
    )
    http = cast(aiohttp.ClientSession, fake)
    head = answer.client if answer else None
    return await Actuator(
        world.api, http, form.render_context, observation, TOKENS, head
    ).carry_out(actions)


def joined(fake: FakeDeployment, number: int) -> list[Action]:
    actions = [DeployCell("cell-0"), *(Attach(f"instance-{n}", "cell-0") for n in range(number))]
    assert asyncio.run(carry_out(fake, actions)) == Effect(tuple(actions), ())
    return actions


def failing(*paths: str):
    def fail(path: str) -> None:
        if path in paths:
            raise aiohttp.ClientConnectionError("cut")

    return fail


def labels(fake: FakeDeployment, instance: str) -> tuple[str, str]:
    found = fake.pods()[instance]["metadata"]["labels"]
    return found[names.CELL], found[names.POOL]


def test_move_and_pool_change_are_recorded_on_the_pod(fake: FakeDeployment) -> None:
    joined(fake, 2)
    actions = [
        DeployCell("cell-1"),
        Migrate("instance-1", "cell-1", LP),
        Migrate("instance-0", "cell-0", HP),
    ]
    asyncio.run(carry_out(fake, actions))
    assert set(fake.cells["cell-1"]) == {"instance-1"}
    assert labels(fake, "instance-1") == ("cell-1", "lp")
    assert labels(fake, "instance-0") == ("cell-0", "hp")


def test_instance_that_fails_holds_up_no_other(fake: FakeDeployment) -> None:
    actions = [DeployCell("cell-0"), *(Attach(f"instance-{n}", "cell-0") for n in range(3))]
    fake.engines["llama-instance-1"].address = "10.9.9.9"
    effect = asyncio.run(carry_out(fake, actions))
    assert set(fake.cells["cell-0"]) == {"instance-0", "instance-2"}
    assert effect.done == (actions[0], actions[1], actions[3])
    (problem,) = effect.problems
    assert problem.reason == "OrderFailed"


def test_actions_after_a_failure_on_the_same_instance_wait(fake: FakeDeployment) -> None:
    joined(fake, 2)
    fake.before_request = failing("/admin/v1/migrate")
    actions = [
        DeployCell("cell-1"),
        Migrate("instance-0", "cell-1", LP),
        Relabel("instance-0", "cell-1", HP),
        Relabel("instance-1", "cell-0", HP),
    ]
    effect = asyncio.run(carry_out(fake, actions))
    assert effect.done == (actions[0], actions[3])


def test_actions_after_a_refusal_of_the_api_server_wait(fake: FakeDeployment) -> None:
    joined(fake, 2)

    def refuse(verb: str) -> None:
        if verb == "merge" and fake.api.calls[-1].endswith("instance-0"):
            raise ApiError(403, "an admission webhook says no", "Forbidden")

    fake.api.before_call = refuse
    actions = [
        Relabel("instance-0", "cell-0", HP),
        Migrate("instance-0", "cell-0", HP),
        Migrate("instance-1", "cell-0", HP),
    ]
    effect = asyncio.run(carry_out(fake, actions))
    assert effect.done == (actions[2],)
    assert fake.engines["llama-instance-0"].pool is LP


def test_order_that_a_cell_refuses_fails(fake: FakeDeployment) -> None:
    effect = asyncio.run(carry_out(fake, [Attach("instance-0", "cell-7")]))
    assert effect.done == ()
    assert "HTTP 404: there is no such cell" in effect.problems[0].message


def test_action_on_a_cell_that_does_not_start_waits(fake: FakeDeployment) -> None:
    joined(fake, 1)
    fake.before_request = failing("/admin/v1/cells/cell-1")
    actions = [
        DeployCell("cell-1"),
        Migrate("instance-0", "cell-1", LP),
        Attach("instance-1", "cell-1"),
        Attach("instance-2", "cell-0"),
    ]
    effect = asyncio.run(carry_out(fake, actions))
    assert effect.done == (actions[3],)
    assert len(effect.problems) == 1


def test_cell_that_may_have_instances_is_not_ended(fake: FakeDeployment) -> None:
    joined(fake, 2)
    asyncio.run(carry_out(fake, [DeployCell("cell-1")]))
    fake.before_request = failing("/admin/v1/migrate")
    actions = [
        Migrate("instance-0", "cell-1", LP),
        DeleteCell("cell-2"),
        DeleteCell("cell-0"),
    ]
    effect = asyncio.run(carry_out(fake, actions))
    assert effect.done == ()
    assert set(fake.cells) == {"cell-0", "cell-1"}


def test_actuator_without_a_head_creates_pods(fake: FakeDeployment) -> None:
    fake.head_answers = False
    actions = [
        Start("instance-7", "cell-0", LP),
        DeployCell("cell-0"),
        Attach("instance-0", "cell-0"),
    ]
    effect = asyncio.run(carry_out(fake, actions))
    assert effect.done == (actions[0],)
    assert [problem.message for problem in effect.problems] == ["The head does not answer."]


def test_instance_of_another_name_at_an_old_address_is_not_adopted(fake: FakeDeployment) -> None:
    actions = [DeployCell("cell-0"), Attach("instance-0", "cell-0")]
    fake.engines["llama-instance-0"].name = "instance-9"
    effect = asyncio.run(carry_out(fake, actions))
    assert effect.done == (actions[0],)
    assert effect.problems[0].message == "The address of instance-0 belongs to instance-9."


def grace_s(fake: FakeDeployment, instance: str) -> int:
    return fake.pods()[instance]["metadata"]["deletionGracePeriodSeconds"]


def test_pod_that_has_drained_is_deleted_without_grace(fake: FakeDeployment) -> None:
    joined(fake, 1)
    asyncio.run(carry_out(fake, [Drain("instance-0", "cell-0", "")]))
    asyncio.run(carry_out(fake, [Stop("instance-0", ""), Stop("instance-1", "")]))
    assert grace_s(fake, "instance-0") == DRAINED_GRACE_S
    assert "instance-0" not in fake.cells["cell-0"]
    assert grace_s(fake, "instance-1") == OWN_GRACE_S


def test_draining_pod_that_no_cell_holds_is_deleted_with_its_own_grace(
    fake: FakeDeployment,
) -> None:
    """The head does not tell whether it has requests."""
    joined(fake, 1)
    asyncio.run(carry_out(fake, [Drain("instance-0", "cell-0", "")]))
    asyncio.run(carry_out(fake, [Detach("instance-0", "cell-0")]))
    asyncio.run(carry_out(fake, [Stop("instance-0", "")]))
    assert grace_s(fake, "instance-0") == OWN_GRACE_S


def test_cell_that_does_not_let_go_keeps_no_instance(fake: FakeDeployment) -> None:
    joined(fake, 1)
    fake.before_request = failing("/admin/v1/cells/cell-0/release")
    effect = asyncio.run(carry_out(fake, [Stop("instance-0", "")]))
    assert effect.problems == ()
    assert "deletionTimestamp" in fake.pods()["instance-0"]["metadata"]


def test_drain_is_marked_before_it_is_ordered(fake: FakeDeployment) -> None:
    joined(fake, 1)
    fake.before_request = failing("/admin/v1/cells/cell-0/drain")
    effect = asyncio.run(carry_out(fake, [Drain("instance-0", "cell-0", "")]))
    assert effect.done == ()
    marks = fake.pods()["instance-0"]["metadata"]["annotations"]
    assert marks[names.DRAINING_SINCE] == "2026-01-01T00:00:00Z"
    assert marks[names.DRAIN_BUDGET] == "30"


def test_refusal_is_a_problem_and_an_outage_ends_the_reconcile(fake: FakeDeployment) -> None:
    def refuse(verb: str) -> None:
        if verb == "create":
            raise ApiError(403, "the quota is used up", "Forbidden")

    fake.api.before_call = refuse
    effect = asyncio.run(carry_out(fake, [Start("instance-7", "cell-0", LP)]))
    assert [problem.reason for problem in effect.problems] == ["Forbidden"]
    assert "the pod of instance-7" in effect.problems[0].message

    def vanish(verb: str) -> None:
        raise ApiError(None, "no answer")

    fake.api.before_call = vanish
    with pytest.raises(ApiError, match="no answer"):
        asyncio.run(carry_out(fake, [Start("instance-7", "cell-0", LP)]))
