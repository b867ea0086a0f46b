"""For how long a leaving instance is waited for."""

MIN_BUDGET_S = 30.0
MAX_BUDGET_S = 15 * 60.0
GENEROSITY = 4.0
"""Lengths are predictions, and the longest request takes longer than the mean one."""


def drain_budget_s(remaining_tokens: int, num_running: int, tpot_s: float) -> float:
    """Seconds from the start of a drain until what still runs there has to go on elsewhere.

    remaining_tokens: predicted output tokens still owed to its ``num_running`` requests, which
    get one each every ``tpot_s``, the latency target.
    """
    mean_s = remaining_tokens / max(1, num_running) * tpot_s
    return min(MAX_BUDGET_S, MIN_BUDGET_S + GENEROSITY * mean_s)
