"""How many instances of a cell are high priority, and which (Ascendra, section 4)."""

from collections.abc import Mapping, Sequence

from macroserve.core.views import Pool


def high_priority_count(num_instances: int, ratio: float) -> int:
    """HP instances among ``num_instances``, rounded; at least one instance stays LP.

    ratio: HP share in [0, 1], 0 for strategies without pools. 0.33 makes 1 HP of 3 (2 LP + 1 HP,
    the best of Ascendra's configurations). Raises ValueError for a ratio out of bounds.
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
    """The fewest changes of pool that leave ``count`` of the instances HP.

    Instances with the least work left become HP, for they are the first free to take urgent
    requests; HP instances with the most work left become LP. Ties go by the order given.
    """
    missing = count - len(high_priority)

    def work(name: str) -> int:
        return remaining_tokens.get(name, 0)

    if missing >= 0:
        low = sorted((i for i in instances if i not in high_priority), key=work)
        return tuple((name, Pool.HP) for name in low[:missing])
    busiest = sorted(high_priority, key=work, reverse=True)
    return tuple((name, Pool.LP) for name in busiest[:-missing])
