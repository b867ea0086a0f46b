"""A status counts ended requests by SLO class, and lists waiting prefills that give way."""

from dataclasses import replace

import pytest

from macroserve.core.request import Slo
from macroserve.core.scheduler.snapshot import MAX_TARGETS
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


CHAT, BATCH = Slo(1.0, 0.1), Slo(30.0, 0.5)


@pytest.mark.parametrize(
    ("strategy", "slos", "yielding"),
    [
        ("unified", [BATCH, CHAT, BATCH], [(30.0, 2), (1.0, 1)]),
        ("unified", [BATCH, BATCH], [(30.0, 2)]),  # to who comes next
        ("unified", [], []),
        ("vllm", [BATCH, CHAT], []),
        ("ascendra", [BATCH, CHAT], []),
    ],
)
def test_status_tells_the_prefills_that_give_way(
    make_scheduler, make_request, strategy, slos, yielding
):
    scheduler = make_scheduler(strategy)
    for index, slo in enumerate(slos):
        scheduler.add_request(make_request(f"r{index}", prompt=200, slo=slo), 0.0)
    one_s = scheduler.latency.batched_prefill_s(200, 512)
    told = [(ttft_s, pytest.approx(num * one_s)) for ttft_s, num in yielding]
    assert [*scheduler.status(0.0).yielding] == told


def test_status_counts_the_rest_of_a_begun_prompt_as_giving_way(
    make_scheduler, make_executor, make_request
):
    scheduler = make_scheduler()
    executor = make_executor(scheduler, {"r": 2, "s": 2})
    executor.add(make_request("r", prompt=700, slo=BATCH))
    executor.step()
    executor.add(make_request("s", prompt=100))
    (batch_s, begun_s), (short_s, _) = scheduler.status(executor.now).yielding
    whole_s = scheduler.latency.batched_prefill_s(700, 512)
    assert (batch_s, short_s) == (30.0, 1.0)
    assert begun_s == pytest.approx(whole_s * 188 / 700)


def test_status_tells_the_longest_of_many_targets(make_scheduler, make_request):
    scheduler = make_scheduler()
    for index in range(MAX_TARGETS + 4):
        slo = Slo(1.0 + index, 0.1)
        scheduler.add_request(make_request(f"r{index}", prompt=9, slo=slo), 0.0)
    targets_s = [ttft_s for ttft_s, _ in scheduler.status(0.0).yielding]
    assert targets_s == [1.0 + index for index in range(MAX_TARGETS + 3, 3, -1)]


def test_scheduler_has_news_by_admissions_phases_drains_and_the_start_and_end_of_work(
    make_scheduler, make_executor, make_request
):
    scheduler = make_scheduler("ecoserve")
    executor = make_executor(scheduler, {"a": 6})

    def had_news():
        found = scheduler.has_news
        scheduler.status(executor.now)
        return found

    assert had_news()
    executor.add(make_request("a", prompt=40, new=6))
    news = [had_news()]
    while executor.alive:
        executor.step()
        news.append(had_news())
        if len(news) == 4:
            scheduler.drain()
            news.append(had_news())
    # admission, prefill, the first decode, another, a drain, two more decodes, the end
    assert news == [True, True, True, False, True, False, False, True]
