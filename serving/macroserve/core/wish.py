"""What a manifest wishes for, as the planner of a fleet reads it."""

from macroserve.core.manifest import Manifest
from macroserve.core.scaling.fleet import Wish
from macroserve.core.scaling.mitosis import Bounds


def wish(manifest: Manifest, instances: int | None = None) -> Wish:
    """instances: instead of the manifest's own number, where something else scales."""
    ratio = manifest.spec.priority.high_priority_ratio
    if not manifest.strategy.uses_pools:
        ratio = 0.0
    elif ratio == "Auto":
        ratio = manifest.strategy.high_priority_ratio
    mitosis = manifest.spec.mitosis
    return Wish(
        manifest.spec.instances if instances is None else instances,
        Bounds(mitosis.lower_bound, mitosis.upper_bound),
        float(ratio),
    )
