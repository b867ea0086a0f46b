"""Whether an instance's requests may keep hidden states in place of keys and values."""

from collections.abc import Callable
from dataclasses import dataclass

from macroserve.core.strategy import Strategy


@dataclass(frozen=True, slots=True)
class Verdict:
    """As said in logs and status: ``on: `` or ``off: ``, and why."""

    on: bool
    reason: str

    def __str__(self) -> str:
        return f"{'on' if self.on else 'off'}: {self.reason}"


def judge(strategy: Strategy, wish: str, find_share: Callable[[], float | str]) -> Verdict:
    """wish: Auto (where they are smaller), On (wherever they can be kept), or Off.

    find_share: memory of a token's hidden state over that of its keys and values, or why it cannot
        be kept. Asked only where that matters, as the answer takes a look at the model.
    Raises ValueError where it is wished On and cannot be.
    """
    if wish == "Off":
        return Verdict(False, "spec.engine.hybridCache is Off")
    if strategy.hybrid_cache:
        found = find_share()
    else:
        found = f"strategy {strategy.name} keeps keys and values alone"
    if not isinstance(found, str):
        reason = f"hidden states take {found:.2f} of the memory of keys and values"
        return Verdict(found < 1 or wish == "On", reason)
    if wish == "On":
        raise ValueError(f"spec.engine.hybridCache is On, but {found}")
    return Verdict(False, found)
