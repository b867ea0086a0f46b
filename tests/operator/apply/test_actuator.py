"""Steps carried out one by one, and what one that fails holds up."""

import asyncio
from collections.abc import Iterable
from typing import cast

import aiohttp
import pytest
from support.played_api import OWN_GRACE_S
from support.played_deployment import HEAD_ADDRESS, NAMESPACE, PlayedDeployment, resource

from macroserve.core.scaling.fleet import (
    Adopt,
    Assign,
    DeleteCell,
    DeployCell,
    Drain,
    Move,
    SetPool,
    Start,
    Step,
    Stop,
)
from macroserve.core.status import Pool
from macroserve.operator.apply.actuator import DRAINED_GRACE_S, Actuator, Effect
from macroserve.operator.apply.desired_objects import Form
from macroserve.operator.apply.tokens import Tokens
from macroserve.operator.k8s import names
from macroserve.operator.k8s.client import ApiError
from macroserve.operator.k8s.kinds import POD
from macroserve.operator.k8s.names import Key
from macroserve.operator.observe.observation import Observation
from macroserve.operator.observe.pods import instance_pods
from macroserve.operator.plan.fleet import Repair
from macroserve.operator.reconcile.head_connection import Contact

LP, HP = Pool.LP, Pool.HP
TOKENS = Tokens({"secret": "s", "admin-token": "a", "key-control": "c"})


@pytest.fixture
def played() -> PlayedDeployment:
    """Four pods that are ready, in no cell, and no cell."""
    played = PlayedDeployment()
    played.apply(resource(4))
    asyncio.run(carry_out(played, [Start(f"instance-{n}", "cell-0", LP) for n in range(4)]))
    played.kubelets()
    return played


async def carry_out(played: PlayedDeployment, steps: Iterable[Step | Repair]) -> Effect:
    """In a round that observes what is there now."""
    found = played.resource()
    assert found is not None
    world, key = played.world, Key(NAMESPACE, "llama")
    form = Form(found, world.options, world.budget)
    pods = list(world.store.of(POD, key).values())
    answer = await Contact(world.api, world.http, key).ask(
        HEAD_ADDRESS, TOKENS.ring, lambda report: False
    )
    observation = Observation(
        now=played.now,
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
    http = cast(aiohttp.ClientSession, played)
    head = answer.head if answer else None
    return await Actuator(world.api, http, form.blueprint, observation, TOKENS, head).carry_out(
        steps
    )


def joined(played: PlayedDeployment, number: int) -> list[Step]:
    steps = [DeployCell("cell-0"), *(Adopt(f"instance-{n}", "cell-0") for n in range(number))]
    assert asyncio.run(carry_out(played, steps)) == Effect(tuple(steps), ())
    return steps


def failing(*paths: str):
    def fail(path: str) -> None:
        if path in paths:
            raise aiohttp.ClientConnectionError("cut")

    return fail


def labels(played: PlayedDeployment, instance: str) -> tuple[str, str]:
    found = played.pods()[instance]["metadata"]["labels"]
    return found[names.CELL], found[names.POOL]


def test_a_move_and_a_pool_are_noted_on_the_pod(played: PlayedDeployment) -> None:
    joined(played, 2)
    steps = [
        DeployCell("cell-1"),
        Move("instance-1", "cell-0", "cell-1"),
        SetPool("instance-0", "cell-0", HP),
    ]
    asyncio.run(carry_out(played, steps))
    assert set(played.cells["cell-1"]) == {"instance-1"}
    assert labels(played, "instance-1") == ("cell-1", "lp")
    assert labels(played, "instance-0") == ("cell-0", "hp")


def test_an_instance_that_fails_holds_up_no_other(played: PlayedDeployment) -> None:
    steps = [DeployCell("cell-0"), *(Adopt(f"instance-{n}", "cell-0") for n in range(3))]
    played.engines["llama-instance-1"].address = "10.9.9.9"
    effect = asyncio.run(carry_out(played, steps))
    assert set(played.cells["cell-0"]) == {"instance-0", "instance-2"}
    assert effect.done == (steps[0], steps[1], steps[3])
    (problem,) = effect.problems
    assert problem.reason == "OrderFailed"


def test_the_same_instances_other_steps_wait(played: PlayedDeployment) -> None:
    joined(played, 2)
    played.before_request = failing("/admin/v1/migrate")
    steps = [
        DeployCell("cell-1"),
        Move("instance-0", "cell-0", "cell-1"),
        SetPool("instance-0", "cell-1", HP),
        SetPool("instance-1", "cell-0", HP),
    ]
    effect = asyncio.run(carry_out(played, steps))
    assert effect.done == (steps[0], steps[3])


def test_nor_are_they_taken_after_a_refusal_of_the_api_server(played: PlayedDeployment) -> None:
    joined(played, 2)

    def refuse(verb: str) -> None:
        if verb == "merge" and played.api.calls[-1].endswith("instance-0"):
            raise ApiError(403, "an admission webhook says no", "Forbidden")

    played.api.before_call = refuse
    steps = [
        Assign("instance-0", "cell-0", HP),
        SetPool("instance-0", "cell-0", HP),
        SetPool("instance-1", "cell-0", HP),
    ]
    effect = asyncio.run(carry_out(played, steps))
    assert effect.done == (steps[2],)
    assert played.engines["llama-instance-0"].pool is LP


def test_an_order_that_a_cell_refuses_has_failed(played: PlayedDeployment) -> None:
    effect = asyncio.run(carry_out(played, [Adopt("instance-0", "cell-7")]))
    assert effect.done == ()
    assert "HTTP 404: there is no such cell" in effect.problems[0].message


def test_what_needs_a_cell_that_does_not_start_waits(played: PlayedDeployment) -> None:
    joined(played, 1)
    played.before_request = failing("/admin/v1/cells/cell-1")
    steps = [
        DeployCell("cell-1"),
        Move("instance-0", "cell-0", "cell-1"),
        Adopt("instance-1", "cell-1"),
        Adopt("instance-2", "cell-0"),
    ]
    effect = asyncio.run(carry_out(played, steps))
    assert effect.done == (steps[3],)
    assert len(effect.problems) == 1


def test_no_cell_ends_while_something_may_still_be_in_it(played: PlayedDeployment) -> None:
    joined(played, 2)
    asyncio.run(carry_out(played, [DeployCell("cell-1")]))
    played.before_request = failing("/admin/v1/migrate")
    steps = [Move("instance-0", "cell-0", "cell-1"), DeleteCell("cell-2"), DeleteCell("cell-0")]
    effect = asyncio.run(carry_out(played, steps))
    assert effect.done == ()
    assert set(played.cells) == {"cell-0", "cell-1"}


def test_without_a_head_pods_are_still_made(played: PlayedDeployment) -> None:
    played.head_answers = False
    steps = [Start("instance-7", "cell-0", LP), DeployCell("cell-0"), Adopt("instance-0", "cell-0")]
    effect = asyncio.run(carry_out(played, steps))
    assert effect.done == (steps[0],)
    assert [problem.message for problem in effect.problems] == ["The head does not answer."]


def test_whoever_answers_at_an_old_address_is_not_adopted(played: PlayedDeployment) -> None:
    steps = [DeployCell("cell-0"), Adopt("instance-0", "cell-0")]
    played.engines["llama-instance-0"].name = "instance-9"
    effect = asyncio.run(carry_out(played, steps))
    assert effect.done == (steps[0],)
    assert effect.problems[0].message == "At the address of instance-0 there is instance-9."


def grace_s(played: PlayedDeployment, instance: str) -> int:
    return played.pods()[instance]["metadata"]["deletionGracePeriodSeconds"]


def test_only_what_has_drained_is_ended_in_a_hurry(played: PlayedDeployment) -> None:
    joined(played, 1)
    asyncio.run(carry_out(played, [Drain("instance-0", "cell-0", "")]))
    asyncio.run(carry_out(played, [Stop("instance-0", ""), Stop("instance-1", "")]))
    assert grace_s(played, "instance-0") == DRAINED_GRACE_S
    assert "instance-0" not in played.cells["cell-0"]
    assert grace_s(played, "instance-1") == OWN_GRACE_S


def test_a_cell_that_does_not_let_go_keeps_no_instance(played: PlayedDeployment) -> None:
    joined(played, 1)
    played.before_request = failing("/admin/v1/cells/cell-0/release")
    effect = asyncio.run(carry_out(played, [Stop("instance-0", "")]))
    assert effect.problems == ()
    assert "deletionTimestamp" in played.pods()["instance-0"]["metadata"]


def test_a_drain_is_marked_before_it_is_ordered(played: PlayedDeployment) -> None:
    joined(played, 1)
    played.before_request = failing("/admin/v1/cells/cell-0/drain")
    effect = asyncio.run(carry_out(played, [Drain("instance-0", "cell-0", "")]))
    assert effect.done == ()
    marks = played.pods()["instance-0"]["metadata"]["annotations"]
    assert marks[names.DRAINING_SINCE] == "2026-01-01T00:00:00Z"
    assert marks[names.DRAIN_BUDGET] == "30"


def test_a_refusal_is_a_problem_and_an_outage_ends_the_round(played: PlayedDeployment) -> None:
    def refuse(verb: str) -> None:
        if verb == "create":
            raise ApiError(403, "the quota is used up", "Forbidden")

    played.api.before_call = refuse
    effect = asyncio.run(carry_out(played, [Start("instance-7", "cell-0", LP)]))
    assert [problem.reason for problem in effect.problems] == ["Forbidden"]
    assert "the pod of instance-7" in effect.problems[0].message

    def vanish(verb: str) -> None:
        raise ApiError(None, "no answer")

    played.api.before_call = vanish
    with pytest.raises(ApiError, match="no answer"):
        asyncio.run(carry_out(played, [Start("instance-7", "cell-0", LP)]))
