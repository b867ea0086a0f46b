"""A deployment's cells, each simulated under its share of the requests."""

from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from random import Random

from macroserve.sim.arrivals import Arrival
from macroserve.sim.record import Outcome
from macroserve.sim.setup import Setup


def sizes(num_instances: int, most: int) -> list[int]:
    """Of as few cells as hold so many instances, ``most`` at a time, as even as can be."""
    num_cells = ceil(num_instances / most)
    return [num_instances // num_cells + (i < num_instances % num_cells) for i in range(num_cells)]


def serve(
    setup: Setup,
    arrivals: Sequence[Arrival],
    cell_sizes: Sequence[int],
    *,
    num_before: int = 0,
    goal: float = 0.0,
    seed: int = 0,
    to_the_end: bool = False,
) -> Outcome:
    """What comes of all arrivals, each of which falls to a cell as likely as its size is large.

    goal: a cell ends as soon as this attainment is out of its reach, and the others are left out.
    The rest is as for ``Setup.serve``.
    """
    random = Random(seed)
    shares: list[list[Arrival]] = [[] for _ in cell_sizes]
    before = [0] * len(cell_sizes)
    for index, arrival in enumerate(arrivals):
        (cell,) = random.choices(range(len(cell_sizes)), cell_sizes)
        shares[cell].append(arrival)
        before[cell] += index < num_before
    outcomes: list[Outcome] = []
    for number, (size, share, num) in enumerate(zip(cell_sizes, shares, before, strict=True)):
        cell = replace(setup, deployment=replace(setup.deployment, num_instances=size))
        outcome = cell.serve(
            share, num_before=num, goal=goal, seed=seed + number, to_the_end=to_the_end
        )
        outcomes.append(outcome)
        if outcome.attainment < goal:
            break
    return Outcome(
        requests=sum(outcome.requests for outcome in outcomes),
        attained=sum(outcome.attained for outcome in outcomes),
        decided=all(outcome.decided for outcome in outcomes),
        verdicts=tuple(verdict for outcome in outcomes for verdict in outcome.verdicts),
    )
