"""One round of a MacroInstance: observe, plan, apply, report.

Level-triggered: a round looks at what is there, takes the next actions, each of which may be
repeated, and leaves the rest to the rounds that follow. What must outlive this process is in the
cluster: labels, annotations, the status.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import Enum
from functools import partial

import aiohttp

from macroserve.api.manifest import ManifestError, wish
from macroserve.core.scaling.fleet import Fleet, FleetPlan, plan_actions
from macroserve.operator.apply.actuator import Actuator, Effect
from macroserve.operator.apply.deletion import add_finalizer, finalize, has_finalizer
from macroserve.operator.apply.desired_objects import DesiredObjects
from macroserve.operator.apply.tls import CertificateError
from macroserve.operator.apply.tokens import TokensError
from macroserve.operator.k8s.cache import Store
from macroserve.operator.k8s.client import Api, ApiError
from macroserve.operator.k8s.kinds import (
    DEPLOYMENT,
    POD,
    REPLICA_SET,
    SECRET,
    Kind,
    Object,
    is_deleting,
    of_component,
)
from macroserve.operator.k8s.names import Key, head, ingress
from macroserve.operator.observe.observation import Observation, Problem
from macroserve.operator.observe.pods import head_address, instance_pods, server
from macroserve.operator.observe.problems import missing_secret
from macroserve.operator.observe.target import ScalingTarget, last_desired_instances
from macroserve.operator.options import OperatorOptions
from macroserve.operator.plan.autoscaler import Autoscaler, needs_load
from macroserve.operator.plan.fleet import fleet, repair_actions
from macroserve.operator.reconcile.head_connection import HeadConnection, HeadState
from macroserve.operator.report.reconcile_result import ReconcileResult
from macroserve.operator.report.reporter import Reporter


class Requeue(Enum):
    """How soon to look again if nothing calls for it."""

    SOON = "soon"
    """Something is under way that no event tells of."""
    LATER = "later"
    STOP = "stop"
    """The MacroInstance is gone."""


@dataclass(frozen=True, slots=True)
class OperatorContext:
    """What all MacroInstances share.

    budget: the kind of disruption budget of this cluster. now: wall clock, with a time zone.
    """

    api: Api
    http: aiohttp.ClientSession
    store: Store
    autoscaler: Autoscaler
    options: OperatorOptions
    budget: Kind
    now: Callable[[], datetime] = lambda: datetime.now(UTC)


class Reconciler:
    """The rounds of one MacroInstance. Between them it keeps what is dear to make again."""

    def __init__(self, world: OperatorContext, resource: Object) -> None:
        metadata = resource["metadata"]
        self.uid: str = metadata["uid"]
        self._key = Key(metadata["namespace"], metadata["name"])
        self._world = world
        self._reporter = Reporter(world.api, resource)
        self._contact = HeadConnection(world.api, world.http, self._key)
        self._form: DesiredObjects | None = None
        self._leaving_since: datetime | None = None
        self._fleet: Fleet | None = None

    async def round(self, resource: Object) -> Requeue:
        """resource: as the API server showed it last. Raises ApiError."""
        now = self._world.now()
        if is_deleting(resource) and await self._finalize(resource, now):
            return Requeue.STOP
        try:
            form = self._present_form(resource)
        except ManifestError as error:
            generation = resource["metadata"]["generation"]
            await self._reporter.report_invalid(error.problems, generation, now)
            return Requeue.LATER
        if is_deleting(resource):
            observation = self._observe(resource, form, None, now)
            held = last_desired_instances(self._reporter.status, form.manifest)
            told = ScalingTarget(held, "It is being deleted.")
            found = ReconcileResult(observation, fleet(observation), told, FleetPlan((), ()))
            await self._reporter.report(found, ())
            return Requeue.SOON
        if not has_finalizer(resource) and not await add_finalizer(self._world.api, resource):
            return Requeue.STOP
        return await self._reconcile(resource, form, now)

    async def _finalize(self, resource: Object, now: datetime) -> bool:
        """Patience begins here, not when somebody deleted what no operator looked after."""
        self._leaving_since = self._leaving_since or now
        waited = now - self._leaving_since
        return await finalize(self._world.api, self._world.store, resource, waited)

    async def _reconcile(self, resource: Object, form: DesiredObjects, now: datetime) -> Requeue:
        world = self._world
        problems: list[Problem] = []
        # Before the pods that mount them: a kubelet that finds no Secret comes back later.
        try:
            tokens = await self._contact.tokens(form.render_context, self._pods(), now)
            tls = await self._contact.tls(form.render_context, self._pods(), now)
        except TokensError as error:
            problems.append(Problem("TokensUnusable", str(error)))
            tokens = tls = None
        except CertificateError as error:
            problems.append(Problem("CertificateUnusable", str(error)))
            tokens = tls = None
        last = last_desired_instances(self._reporter.status, form.manifest)
        problems += await form.children.ensure(world.api, world.store, self._key, last)
        answer = None
        address = self._head_address()
        if tokens and address:
            answer = await self._contact.ask(
                address, tokens.ring, partial(needs_load, form.manifest), tls
            )
        observation = self._observe(resource, form, answer, now)
        target = await world.autoscaler.target(observation, answer.load if answer else None)

        present = fleet(observation)
        plan = plan_actions(
            present, wish(form.manifest, target.instances, target.high_priority_ratio)
        )
        decided = self._reporter.decide(plan, now)

        effect = Effect((), ())
        if tokens:
            orders = answer.client if answer else None
            actuator = Actuator(
                world.api, world.http, form.render_context, observation, tokens, orders, tls
            )
            effect = await actuator.carry_out((*repair_actions(observation), *plan.actions))

        problems += [*effect.problems, *await self._missing(form, observation)]
        found = ReconcileResult(observation, present, target, plan, effect.done, tuple(problems))
        try:
            await self._reporter.report(found, decided)
        except ApiError as error:
            if error.is_absence:
                return Requeue.STOP
            raise
        return self._pace(present, effect)

    def _present_form(self, resource: Object) -> DesiredObjects:
        """Raises ManifestError."""
        if self._form is None or self._form.generation != resource["metadata"]["generation"]:
            self._form = DesiredObjects(resource, self._world.options, self._world.budget)
        return self._form

    def _observe(
        self, resource: Object, form: DesiredObjects, answer: HeadState | None, now: datetime
    ) -> Observation:
        pods = self._pods()
        deployments = self._world.store.of(DEPLOYMENT, self._key)
        return Observation(
            now=now,
            name=self._key.name,
            namespace=self._key.namespace,
            uid=self.uid,
            generation=form.generation,
            deleting=is_deleting(resource),
            manifest=form.manifest,
            revision=form.revision,
            pods=instance_pods(pods, self.uid, form.render_context.tls.enabled),
            head=server(deployments.get(head(self._key.name)), of_component(pods, "head")),
            ingress=server(deployments.get(ingress(self._key.name)), of_component(pods, "ingress")),
            report=answer.report if answer else None,
            running_cells=answer.report.running if answer else None,
            status=self._reporter.status,
        )

    def _head_address(self) -> str | None:
        store, key = self._world.store, self._key
        return head_address(
            self._pods(),
            store.of(REPLICA_SET, key).values(),
            store.of(DEPLOYMENT, key).get(head(key.name)),
            self.uid,
        )

    def _pods(self) -> list[Object]:
        return list(self._world.store.of(POD, self._key).values())

    async def _missing(self, form: DesiredObjects, observation: Observation) -> list[Problem]:
        """Pods wait without a word for a Secret that is not there."""
        secret = form.manifest.spec.ingress.api_keys_secret
        servers = observation.ingress
        if secret is None or (servers and servers.complete):
            return []
        if await self._world.api.get(SECRET, self._key.namespace, secret):
            return []
        return [missing_secret("spec.ingress.apiKeysSecret", secret)]

    def _pace(self, present: Fleet, effect: Effect) -> Requeue:
        """Soon after an action, while something drains, and while members change."""
        members = tuple(replace(member, remaining_tokens=0) for member in present.members)
        seen, self._fleet = self._fleet, replace(present, members=members)
        drains = any(member.draining for member in members)
        return Requeue.SOON if effect.done or drains or seen != self._fleet else Requeue.LATER
