"""Attainment of the last minute by SLO class."""

from collections.abc import Iterable

from macroserve.api.messages import CellReport
from macroserve.core.request import DEFAULT_CLASS
from macroserve.core.status import Ended


def recent_by_class(cells: Iterable[CellReport]) -> dict[str, Ended]:
    """Return the requests that ended in the last minute by class, the default class first.

    Classes without any since the cell schedulers started are missing.
    """
    ended = {DEFAULT_CLASS: Ended()}
    for report in cells:
        rest = Ended(report.recent_finished, report.recent_attained)
        for name, found in report.recent_by_class.items():
            ended[name] = ended.get(name, Ended()) + found
            rest -= found
        ended[DEFAULT_CLASS] += rest
    return ended
