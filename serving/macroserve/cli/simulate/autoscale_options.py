"""Options that let ``simulate`` set the number of instances as the operator does."""

import re
from dataclasses import dataclass
from typing import Annotated

import typer

from macroserve.api.manifest import Manifest, Stabilization
from macroserve.cli.load_options import parse_duration
from macroserve.core.scaling.autoscale import START_S, Limits
from macroserve.sim.autoscaling.start_up import StartUp

_BOUNDS = re.compile(r"([0-9]{1,6}):([0-9]{1,6})")


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoscaleOptions:
    """Bounds on the number of instances, and how they start."""

    autoscale: Annotated[
        str | None,
        typer.Option(
            metavar="MIN:MAX",
            help="Let the operator's autoscaler set the number of instances within these bounds, "
            "such as 3:8, starting at spec.instances.",
        ),
    ] = None
    start_up: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help=f"With --autoscale: mean startup time of an instance (default: {START_S:.0f}s).",
        ),
    ] = None
    start_up_cv: Annotated[
        float | None,
        typer.Option(
            metavar="C",
            help="With --autoscale: coefficient of variation of startup times (default: 0, "
            "constant).",
        ),
    ] = None
    failed_starts: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="With --autoscale: fraction of the starts that fail and are retried, such as 0.1 "
            "(default: 0).",
        ),
    ] = None

    def start(self) -> StartUp:
        """Return how instances start. Raises ValueError for bad values, and without --autoscale."""
        given = (self.start_up, self.start_up_cv, self.failed_starts)
        if self.autoscale is None and any(option is not None for option in given):
            raise ValueError("--start-up, --start-up-cv and --failed-starts need --autoscale")
        mean_s = parse_duration("--start-up", self.start_up) if self.start_up else START_S
        return StartUp(mean_s, self.start_up_cv or 0.0, self.failed_starts or 0.0)

    def limits(self, manifest: Manifest) -> Limits | None:
        """Return the bounds with the manifest's windows; None without --autoscale.

        Raises ValueError for invalid bounds.
        """
        if self.autoscale is None:
            return None
        found = _BOUNDS.fullmatch(self.autoscale)
        least, most = map(int, found.groups()) if found else (0, 0)
        if not 1 <= least <= most:
            raise ValueError(f"--autoscale {self.autoscale} must be MIN:MAX, such as 3:8")
        autoscaling = manifest.spec.autoscaling
        window = autoscaling.stabilization if autoscaling else Stabilization()
        return Limits(least, most, window.up_s, window.down_s)
