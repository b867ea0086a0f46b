"""The operator exports these metrics about itself."""

from prometheus_client import Counter, Gauge, Histogram

_PREFIX = "macroserve_operator_"

RECONCILES = Counter(f"{_PREFIX}reconciles", "Reconciles of MacroInstances.")
RECONCILE_SECONDS = Histogram(
    f"{_PREFIX}reconcile_seconds",
    "Duration of a reconcile.",
    buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 120),
)
ERRORS = Counter(f"{_PREFIX}errors", "What went wrong, and was tried again.", ["kind"])
API_CALLS = Counter(f"{_PREFIX}api_calls", "Calls of the Kubernetes API.", ["verb"])
MACROINSTANCES = Gauge(f"{_PREFIX}macroinstances", "MacroInstances that this replica looks after.")
LEADER = Gauge(f"{_PREFIX}leader", "1 for the replica that reconciles, 0 for those that wait.")
REACTION_SECONDS = Histogram(
    f"{_PREFIX}reaction_seconds",
    "From a change of a MacroInstance's spec seen to acted on.",
    buckets=(0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 120),
)
_MACROINSTANCE = ["namespace", "macroinstance"]
DESIRED_INSTANCES = Gauge(
    f"{_PREFIX}target_instances", "Instances that a MacroInstance should have.", _MACROINSTANCE
)
READY_INSTANCES = Gauge(
    f"{_PREFIX}ready_instances", "Instances of a MacroInstance that serve.", _MACROINSTANCE
)
