"""Reconcile of a MacroInstance in four phases: observe, plan, apply, report.

It is level-triggered: each reconcile takes the next, idempotent actions from the observed state and
leaves the rest to later ones. State that must outlive the process is in the cluster: labels,
annotations, the status.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import Enum
from functools import partial

import aiohttp

from macroserve.api.manifest import ManifestError
from macroserve.core.scaling.fleet import Fleet, FleetPlan, plan_actions
from macroserve.operator.apply.actuator import Actuator, Effect
from macroserve.operator.apply.deletion import add_finalizer, finalize, has_finalizer
from macroserve.operator.apply.owned_objects import DesiredObjects
from macroserve.operator.apply.tls import CertificateError
from macroserve.operator.apply.tokens import TokensError
from macroserve.operator.k8s.cache import Store
from macroserve.operator.k8s.client import Api, ApiError
from macroserve.operator.k8s.kinds import (
    DEPLOYMENT,
    POD,
    REPLICA_SET,
    SECRET,
    ClusterKinds,
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
    """Time of the next reconcile if no event asks for it."""

    SOON = "soon"
    """A change is under way that causes no event."""
    LATER = "later"
    STOP = "stop"
    """The MacroInstance is gone."""


@dataclass(frozen=True, slots=True)
class OperatorContext:
    """State shared by the reconciles of all MacroInstances."""

    api: Api
    http: aiohttp.ClientSession
    store: Store
    autoscaler: Autoscaler
    options: OperatorOptions
    kinds: ClusterKinds
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    """Wall clock, with a time zone."""


class Reconciler:
    """Reconciler of one MacroInstance; caches what is expensive to build."""

    def __init__(self, context: OperatorContext, resource: Object) -> None:
        self.uid: str = resource["metadata"]["uid"]
        self._key = Key.of(resource)
        self._context = context
        self._reporter = Reporter(context.api, resource)
        self._head = HeadConnection(context.api, context.http, self._key)
        self._desired: DesiredObjects | None = None
        self._finalizing_since: datetime | None = None
        self._fleet: Fleet | None = None

    async def reconcile(self, resource: Object) -> Requeue:
        """Reconcile the resource as the API server last sent it. Raise ApiError."""
        now = self._context.now()
        if is_deleting(resource) and await self._finalize(resource, now):
            return Requeue.STOP
        try:
            desired = self._desired_objects(resource)
        except ManifestError as error:
            generation = resource["metadata"]["generation"]
            await self._reporter.report_invalid(error.problems, generation, now)
            return Requeue.LATER
        if is_deleting(resource):
            observation = self._observe(resource, desired, None, now)
            last = last_desired_instances(self._reporter.status, desired.manifest)
            target = ScalingTarget(last, "The MacroInstance is being deleted.")
            found = ReconcileResult(observation, fleet(observation), target, FleetPlan((), ()))
            await self._reporter.report(found, ())
            return Requeue.SOON
        if not has_finalizer(resource) and not await add_finalizer(self._context.api, resource):
            return Requeue.STOP
        return await self._apply(resource, desired, now)

    async def _finalize(self, resource: Object, now: datetime) -> bool:
        """Take one step of the deletion; return whether it is complete. Raise ApiError.

        The wait for the ingress counts from the first step, because the deletion may be long ago if
        no operator ran.
        """
        self._finalizing_since = self._finalizing_since or now
        waited = now - self._finalizing_since
        return await finalize(self._context.api, self._context.store, resource, waited)

    async def _apply(self, resource: Object, desired: DesiredObjects, now: datetime) -> Requeue:
        context = self._context
        problems: list[Problem] = []
        # Secrets come before the pods that mount them: a kubelet that finds none retries slowly.
        try:
            tokens = await self._head.tokens(desired.render_context, self._pods(), now)
            tls = await self._head.tls(desired.render_context, self._pods(), now)
        except TokensError as error:
            problems.append(Problem("TokensUnusable", str(error)))
            tokens = tls = None
        except CertificateError as error:
            problems.append(Problem("CertificateUnusable", str(error)))
            tokens = tls = None
        last = last_desired_instances(self._reporter.status, desired.manifest)
        problems += await desired.owned.ensure(context.api, context.store, self._key, last)
        state = None
        address = self._head_address()
        if tokens and address:
            state = await self._head.ask(
                address, tokens.ring, partial(needs_load, desired.manifest), tls
            )
        observation = self._observe(resource, desired, state, now)
        target = context.autoscaler.target(observation, state.load if state else None)

        current = fleet(observation)
        plan = plan_actions(
            current,
            desired.manifest.desired_fleet(target.desired_instances, target.high_priority_ratio),
        )
        decided = self._reporter.decide(plan, now)

        effect = Effect((), ())
        if tokens:
            client = state.client if state else None
            actuator = Actuator(
                context.api, context.http, desired.render_context, observation, tokens, client, tls
            )
            effect = await actuator.carry_out((*repair_actions(observation), *plan.actions))

        problems += [*effect.problems, *await self._missing(desired, observation)]
        found = ReconcileResult(observation, current, target, plan, effect.done, tuple(problems))
        try:
            await self._reporter.report(found, decided)
        except ApiError as error:
            if error.is_absence:
                return Requeue.STOP
            raise
        return self._requeue(current, effect)

    def _desired_objects(self, resource: Object) -> DesiredObjects:
        """Return the desired objects of the current generation. Raise ManifestError."""
        if self._desired is None or self._desired.generation != resource["metadata"]["generation"]:
            self._desired = DesiredObjects(resource, self._context.options, self._context.kinds)
        return self._desired

    def _observe(
        self, resource: Object, desired: DesiredObjects, state: HeadState | None, now: datetime
    ) -> Observation:
        pods = self._pods()
        deployments = self._context.store.of(DEPLOYMENT, self._key)
        return Observation(
            now=now,
            name=self._key.name,
            namespace=self._key.namespace,
            uid=self.uid,
            generation=desired.generation,
            deleting=is_deleting(resource),
            manifest=desired.manifest,
            revision=desired.revision,
            pods=instance_pods(pods, self.uid, desired.render_context.tls.enabled),
            head=server(deployments.get(head(self._key.name)), of_component(pods, "head")),
            ingress=server(deployments.get(ingress(self._key.name)), of_component(pods, "ingress")),
            report=state.report if state else None,
            running_cells=state.report.running if state else None,
            status=self._reporter.status,
        )

    def _head_address(self) -> str | None:
        store, key = self._context.store, self._key
        return head_address(
            self._pods(),
            store.of(REPLICA_SET, key).values(),
            store.of(DEPLOYMENT, key).get(head(key.name)),
            self.uid,
        )

    def _pods(self) -> list[Object]:
        return list(self._context.store.of(POD, self._key).values())

    async def _missing(self, desired: DesiredObjects, observation: Observation) -> list[Problem]:
        """Return problems of pods that wait for an absent Secret, which their status omits."""
        secret = desired.manifest.spec.ingress.api_keys_secret
        servers = observation.ingress
        if secret is None or (servers and servers.complete):
            return []
        if await self._context.api.get(SECRET, self._key.namespace, secret):
            return []
        return [missing_secret("spec.ingress.apiKeysSecret", secret)]

    def _requeue(self, current: Fleet, effect: Effect) -> Requeue:
        """Return when to reconcile again: soon after actions and while members drain or change."""
        members = tuple(replace(member, remaining_tokens=0) for member in current.members)
        seen, self._fleet = self._fleet, replace(current, members=members)
        drains = any(member.draining for member in members)
        return Requeue.SOON if effect.done or drains or seen != self._fleet else Requeue.LATER
