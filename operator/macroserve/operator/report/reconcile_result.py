"""Result of one reconcile, for its report: observed, desired, planned and done."""

from dataclasses import dataclass
from functools import cached_property

from macroserve.core.scaling.fleet import Action, Fleet, FleetPlan
from macroserve.operator.observe.observation import InstancePod, Observation, Problem
from macroserve.operator.observe.target import ScalingTarget
from macroserve.operator.plan.avoidance import Avoidance, avoidance


@dataclass(frozen=True, slots=True)
class Issue:
    """A problem and its subject (``instance-2``, ``The head``); empty if the problem names it."""

    about: str
    problem: Problem

    def __str__(self) -> str:
        about = f"{self.about}: " if self.about else ""
        return f"{about}{self.problem.reason}. {self.problem.message}"


@dataclass(frozen=True)
class ReconcileResult:
    """Observations, plan and effects of one reconcile."""

    observation: Observation
    """State before the actions; the next reconcile observes their effect."""
    fleet: Fleet
    target: ScalingTarget
    plan: FleetPlan
    done: tuple[Action, ...] = ()
    """Actions of the plan that were carried out."""
    refusals: tuple[Problem, ...] = ()
    """Why the API server or a cell refused others."""

    @cached_property
    def serving(self) -> tuple[InstancePod, ...]:
        """Return the ready instances that accept requests and, as far as known, are in a cell."""
        joined = {m.name for m in self.fleet.members if m.joined}
        return tuple(pod for pod in self._staying if pod.ready and pod.instance in joined)

    @property
    def starting(self) -> tuple[InstancePod, ...]:
        serving = {pod.instance for pod in self.serving}
        return tuple(pod for pod in self._staying if pod.instance not in serving)

    @property
    def draining(self) -> tuple[InstancePod, ...]:
        return tuple(
            pod for pod in self.observation.pods if pod.draining_since and not pod.deleting
        )

    @property
    def ending(self) -> tuple[InstancePod, ...]:
        return tuple(pod for pod in self.observation.pods if pod.deleting)

    @property
    def outdated(self) -> tuple[InstancePod, ...]:
        """Return the pods that were created from an earlier form of the manifest."""
        return tuple(pod for pod in self._staying if pod.revision != self.observation.revision)

    @cached_property
    def avoidance(self) -> Avoidance:
        return avoidance(self.observation)

    @property
    def min_serving(self) -> int:
        """Return how many instances must serve for Ready.

        The number in ``spec``, or fewer if autoscaling lowers it; instances that it adds are extra.
        """
        return min(self.target.desired_instances, self.observation.manifest.spec.instances)

    @property
    def issues(self) -> tuple[Issue, ...]:
        """Return all issues, the most important first."""
        observation = self.observation
        servers = (("The head", observation.head), ("The ingress", observation.ingress))
        return (
            *(Issue("", problem) for problem in self.refusals),
            *(
                Issue(about, server.problem)
                for about, server in servers
                if server and server.problem
            ),
            *(Issue(pod.instance, pod.problem) for pod in observation.pods if pod.problem),
            *(Issue("", avoided.problem) for avoided in self.avoidance.nodes),
        )

    @property
    def _staying(self) -> tuple[InstancePod, ...]:
        return tuple(
            pod
            for pod in self.observation.pods
            if not (pod.deleting or pod.draining_since or pod.failed)
        )
