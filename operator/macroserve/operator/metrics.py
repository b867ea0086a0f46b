"""Metrics of the operator about itself."""

from prometheus_client import Counter, Gauge, Histogram

_PREFIX = "macroserve_operator_"

RECONCILES = Counter(f"{_PREFIX}reconciles", "Reconciles of MacroInstances.")
RECONCILE_SECONDS = Histogram(
    f"{_PREFIX}reconcile_seconds",
    "Duration of a reconcile.",
    buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 120),
)
ERRORS = Counter(f"{_PREFIX}errors", "Errors, after which the operation is retried.", ["kind"])
API_CALLS = Counter(f"{_PREFIX}api_calls", "Calls of the Kubernetes API.", ["verb"])
MACROINSTANCES = Gauge(f"{_PREFIX}macroinstances", "MacroInstances that this replica reconciles.")
LEADER = Gauge(f"{_PREFIX}leader", "1 for the replica that reconciles, 0 for the others.")
REACTION_SECONDS = Histogram(
    f"{_PREFIX}reaction_seconds",
    "Time from an observed change of a MacroInstance's spec to the first action.",
    buckets=(0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 120),
)
_MACROINSTANCE = ["namespace", "macroinstance"]
DESIRED_INSTANCES = Gauge(
    f"{_PREFIX}target_instances", "Desired instances of a MacroInstance.", _MACROINSTANCE
)
READY_INSTANCES = Gauge(
    f"{_PREFIX}ready_instances", "Ready instances of a MacroInstance.", _MACROINSTANCE
)
