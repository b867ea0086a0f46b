"""What a manifest wishes for, as the planner of a fleet reads it."""

from macroserve.core.manifest import Manifest
from macroserve.core.scaling.fleet import Wish
from macroserve.core.scaling.mitosis import Bounds


def wish(manifest: Manifest, instances: int | None = None, auto_ratio: float | None = None) -> Wish:
    """instances: instead of the manifest's own number, where something else scales.
    auto_ratio: share of HP instances where the manifest leaves it open, instead of the strategy's.
    """
    ratio = manifest.spec.priority.high_priority_ratio
    if not manifest.strategy.uses_pools:
        ratio = 0.0
    elif ratio == "Auto":
        ratio = manifest.strategy.high_priority_ratio if auto_ratio is None else auto_ratio
    mitosis = manifest.spec.mitosis
    return Wish(
        manifest.spec.instances if instances is None else instances,
        Bounds(mitosis.lower_bound, mitosis.upper_bound),
        float(ratio),
    )


def leaves_ratio_open(manifest: Manifest) -> bool:
    """Whether it is for others to find the share of HP instances."""
    is_auto = manifest.spec.priority.high_priority_ratio == "Auto"
    return is_auto and manifest.strategy.uses_pools
