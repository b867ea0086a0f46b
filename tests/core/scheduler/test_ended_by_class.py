"""A status counts what ended by SLO class, as each request's own targets judge it."""

from dataclasses import replace

from macroserve.core.request import Slo
from macroserve.core.status import Ended

STRICT, LAX = Slo(1e-6, 0.1), Slo(60.0, 9.0)


def test_status_counts_what_ended_by_class(make_scheduler, make_executor, make_request):
    scheduler = make_scheduler("unified")
    executor = make_executor(scheduler, {"a": 3, "b": 3, "c": 3, "d": 3})
    work = (("a", "batch", LAX), ("b", "batch", STRICT), ("c", "chat", LAX), ("d", "default", LAX))
    for name, slo_class, slo in work[:2]:
        executor.add(replace(make_request(name, slo=slo), slo_class=slo_class))
    executor.drain()
    first = scheduler.status(executor.now)
    for name, slo_class, slo in work[2:]:
        executor.add(replace(make_request(name, executor.now, slo=slo), slo_class=slo_class))
    executor.drain()
    second = scheduler.status(executor.now)
    assert first.ended_by_class == {"batch": Ended(2, 1)}, "a status does not change"
    assert second.ended_by_class == {"batch": Ended(2, 1), "chat": Ended(1, 1)}
    assert (second.finished, second.attained) == (4, 3)


def test_request_dropped_as_late_is_a_miss_of_its_class(make_scheduler, make_request):
    scheduler = make_scheduler("vllm", drop_late=True)
    for name, slo in (("late", Slo(1.0, 0.1)), ("in time", LAX)):
        scheduler.add_request(replace(make_request(name, slo=slo), slo_class="batch"), 1.05)
    scheduler.schedule(1.05)
    assert scheduler.status(1.05).ended_by_class == {"batch": Ended(1, 0)}
