"""EcoServe's mitosis scaling: cells grow, split and merge with the number of instances.

The plan is stateless: each decision follows from the current cells and the desired number alone, so
an executor may stop anywhere, observe and plan again, and arrives at the same cells.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from macroserve.core.scaling.decisions import (
    Add,
    Cell,
    Decision,
    Merge,
    Remove,
    SetPool,
    Split,
    apply,
    in_order,
)
from macroserve.core.status import Pool


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds on the instances of a cell: N_l and N_u in the paper.

    Raises ValueError unless 1 <= lower and 2 * lower <= upper + 1: a cell one above its upper bound
    must split into two within bounds.
    """

    lower: int
    upper: int

    def __post_init__(self) -> None:
        if self.lower < 1:
            raise ValueError(f"the lower bound of a cell is {self.lower}, must be 1 or more")
        if 2 * self.lower > self.upper + 1:
            raise ValueError(
                f"the upper bound of a cell is {self.upper}, must be {2 * self.lower - 1} or more "
                f"for a lower bound of {self.lower}"
            )


def plan(
    cells: Iterable[Cell],
    desired_instances: int,
    bounds: Bounds,
    high_priority_ratio: float = 0.0,
    remaining_tokens: Mapping[str, int] | None = None,
    leaving: Collection[str] = (),
) -> tuple[Decision, ...]:
    """Return the decisions in order, none if the cells are as desired.

    Afterwards the cells hold ``desired_instances``, each cell within bounds (a single one below the
    lower bound if fewer are desired), and no two of them would fit into one.

    high_priority_ratio: HP share of each cell, 0 for strategies without pools.
    remaining_tokens: predicted output tokens left, by serving instance; others have yet to start.
    leaving: names of instances that drain outside any cell, which are not reused.

    Raises ValueError for a negative number and for a ratio outside [0, 1].
    """
    if desired_instances < 0:
        raise ValueError(f"{desired_instances} instances are desired, must be 0 or more")
    cells = in_order(cells)
    names = [name for cell in cells for name in cell.instances]
    assert len(set(names)) == len(names), f"an instance is in two cells: {cells}"
    rules = _Rules(desired_instances, bounds, high_priority_ratio, remaining_tokens or {}, leaving)
    decisions = []
    while decision := rules.next_decision(cells):
        decisions.append(decision)
        cells = apply(cells, decision)
    return tuple(decisions)


@dataclass(frozen=True, slots=True)
class _Rules:
    desired_instances: int
    bounds: Bounds
    ratio: float
    remaining_tokens: Mapping[str, int]
    leaving: Collection[str]

    def next_decision(self, cells: tuple[Cell, ...]) -> Decision | None:
        missing = self.desired_instances - sum(cell.size for cell in cells)
        if missing >= 0 and (split := self._split(cells)):
            return split
        if moved := self._merge(cells, missing):
            return moved
        if missing > 0:
            return self._add(cells)
        if missing < 0:
            return self._remove(cells)
        return self._set_pool(cells)

    def _split(self, cells: tuple[Cell, ...]) -> Split | None:
        """Split a cell above the upper bound: move the excess, or more if the other cell, one with
        room (left by an interrupted split) or a new one, needs it for its lower bound."""
        lower, upper = self.bounds.lower, self.bounds.upper
        cell = next((cell for cell in cells if cell.size > upper), None)
        if cell is None:
            return None
        roomy = [other for other in _by_size(cells) if other.size < upper]
        other = roomy[0] if roomy else Cell(_unused("cell", {cell.name for cell in cells}))
        size = min(max(cell.size - upper, lower - other.size), upper - other.size)
        reason = f"{cell.name} has {cell.size} instances, more than {upper}"
        verb = "join" if other.size else "form"
        return self._moved(cell, other, size, f"{reason}, so {size} of them {verb} {other.name}.")

    def _merge(self, cells: tuple[Cell, ...], missing: int) -> Merge | Split | None:
        """Merge the two smallest cells if one can hold them and all missing instances; otherwise
        fill up the smallest to its lower bound once no instance is missing."""
        if len(cells) < 2:
            return None
        upper, lower = self.bounds.upper, self.bounds.lower
        source, into = _by_size(cells)[:2]
        sizes = f"{source.name} has {source.size} instances and {into.name} {into.size}"
        if source.size == 0:
            return Merge(source.name, into.name, f"{source.name} has no instances.")
        if source.size + into.size + max(0, missing) <= upper:
            return Merge(source.name, into.name, f"{sizes}, which fit into one cell.")
        if missing == 0 and source.size < lower:
            size = lower - source.size
            reason = f"{sizes}, and a cell has at least {lower}, so {size} move."
            return self._moved(into, source, size, reason)
        return None

    def _moved(self, cell: Cell, other: Cell, size: int, reason: str) -> Split:
        """Move ``size`` instances of ``cell`` to ``other``, including the HP ones that it then
        needs; ``cell`` keeps serving instances up to its lower bound if others can move."""
        num_high = self._high_priority_count(other.size + size) - len(other.high_priority)
        high = cell.high_priority[: max(0, num_high)]
        rest = cell.high_priority[len(high) :]
        by_pool = (*high, *cell.low_priority, *rest)
        serving = [name for name in by_pool if name in self.remaining_tokens]
        starting = [name for name in by_pool if name not in self.remaining_tokens]
        spare = max(0, len(serving) - self.bounds.lower)
        moved = (*serving[:spare], *starting, *serving[spare:])[:size]
        return Split(cell.name, other.name, moved, reason)

    def _add(self, cells: tuple[Cell, ...]) -> Add:
        """Add to a cell below its lower bound, else to the fullest with room, else to the oldest,
        which then splits. Thus an original cell fills up again before the cell split off it."""
        lower, upper = self.bounds.lower, self.bounds.upper
        below = [cell for cell in _by_size(cells) if cell.size < lower]
        not_full = [cell for cell in cells if cell.size < upper]
        if below:
            cell = below[0]
        elif not_full:
            cell = max(not_full, key=lambda cell: cell.size)
        else:
            cell = cells[0] if cells else Cell("cell-0")
        high = self._high_priority_count(cell.size + 1) > len(cell.high_priority)
        names = {name for cell in cells for name in cell.instances}
        return Add(
            cell.name,
            _unused("instance", names.union(self.leaving)),
            Pool.HP if high else Pool.LP,
            f"{len(names)} of {self.desired_instances} desired instances exist.",
        )

    def _remove(self, cells: tuple[Cell, ...]) -> Remove:
        """Remove from a cell above its upper bound, else from the smallest not at its lower bound,
        else from the smallest: an instance of the pool with one too many that has not started or
        has the least work left."""
        lower, upper = self.bounds.lower, self.bounds.upper
        by_size = _by_size(cells)
        above = [cell for cell in by_size if cell.size > upper]
        not_at_lower = [cell for cell in by_size if cell.size != lower]
        cell = (above or not_at_lower or by_size)[0]
        high = len(cell.high_priority) > self._high_priority_count(cell.size - 1)
        pool = (cell.high_priority if high else cell.low_priority) or cell.instances
        victim = min(reversed(pool), key=lambda name: self.remaining_tokens.get(name, -1))
        total = sum(cell.size for cell in cells)
        left = self.remaining_tokens.get(victim)
        why = "has not started yet" if left is None else f"has the least work: {left} tokens"
        reason = f"{total} instances exist, {self.desired_instances} are desired; {victim} {why}."
        return Remove(cell.name, victim, reason)

    def _set_pool(self, cells: tuple[Cell, ...]) -> SetPool | None:
        for cell in cells:
            num_high = self._high_priority_count(cell.size)
            for name, pool in priority_changes(
                cell.instances, cell.high_priority, num_high, self.remaining_tokens
            ):
                share = f"{len(cell.high_priority)} of {cell.size} instances"
                reason = f"{share} of {cell.name} are high priority, should be {num_high}."
                return SetPool(name, pool, reason)
        return None

    def _high_priority_count(self, num_instances: int) -> int:
        return high_priority_count(num_instances, self.ratio)


def _by_size(cells: tuple[Cell, ...]) -> list[Cell]:
    """Return the cells from smallest to largest, then newest first, so that the oldest stay."""
    newest_first = cells[::-1]
    return sorted(newest_first, key=lambda cell: cell.size)


def _unused(kind: str, used: Collection[str]) -> str:
    return next(name for i in count() if (name := f"{kind}-{i}") not in used)


def high_priority_count(num_instances: int, ratio: float) -> int:
    """Return the number of HP instances among ``num_instances``; at least one stays LP.

    ratio: HP share in [0, 1], 0 for strategies without pools. 0.33 gives 2 LP + 1 HP, the best of
        Ascendra's configurations. Raises ValueError if out of bounds.
    """
    if not 0 <= ratio <= 1:
        raise ValueError(f"the share of high-priority instances is {ratio}, must be 0 to 1")
    return max(0, min(num_instances - 1, int(num_instances * ratio + 0.5)))


def priority_changes(
    instances: Sequence[str],
    high_priority: Sequence[str],
    count: int,
    remaining_tokens: Mapping[str, int],
) -> tuple[tuple[str, Pool], ...]:
    """Return the fewest changes of pool that make ``count`` of the instances HP.

    Instances with the least work left become HP, as they are the first to have time for urgent
    requests; HP instances with the most work left become LP. Ties follow the order given.
    """
    missing = count - len(high_priority)

    def work(name: str) -> int:
        return remaining_tokens.get(name, 0)

    if missing >= 0:
        low = sorted((i for i in instances if i not in high_priority), key=work)
        return tuple((name, Pool.HP) for name in low[:missing])
    busiest = sorted(high_priority, key=work, reverse=True)
    return tuple((name, Pool.LP) for name in busiest[:-missing])
