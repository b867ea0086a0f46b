import pytest

from macroserve.operator.k8s.names import Key
from macroserve.operator.plan.firing_alerts import HEARTBEAT, STALE_S, Alert, FiringAlerts

LLAMA, QWEN = Key("ns", "llama"), Key("ns", "qwen")
LOW, LATE = "MacroserveSLOAttainmentLow", "MacroserveQueuesLate"


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def book(clock):
    return FiringAlerts(clock)


def fires(name, about=LLAMA, fingerprint=""):
    return Alert(name, about, True, fingerprint)


def ends(name, about=LLAMA, fingerprint=""):
    return Alert(name, about, False, fingerprint)


def test_alert_fires_until_it_is_resolved(book):
    assert book.firing(LLAMA) == frozenset()
    assert book.note(fires(LOW))
    assert book.firing(LLAMA) == {LOW}
    assert book.firing(QWEN) == frozenset()
    assert book.note(ends(LOW))
    assert book.firing(LLAMA) == frozenset()


def test_repeated_alert_is_not_new(book):
    assert [book.note(fires(LOW)) for _ in range(3)] == [True, False, False]
    assert book.note(fires(LATE))
    assert [book.note(ends(LOW)) for _ in range(2)] == [True, False]
    assert book.firing(LLAMA) == {LATE}


def test_alerts_of_one_name_end_each_on_its_own(book):
    book.note(fires(LOW, fingerprint="a"))
    assert not book.note(fires(LOW, fingerprint="b"))
    assert not book.note(ends(LOW, fingerprint="a"))
    assert book.firing(LLAMA) == {LOW}
    assert book.note(ends(LOW, fingerprint="b"))


def test_alert_that_is_not_repeated_ends(book, clock):
    book.note(fires(LOW))
    clock.now += STALE_S
    assert book.firing(LLAMA) == {LOW}
    book.note(fires(LATE))
    clock.now += 0.1
    assert book.firing(LLAMA) == {LATE}
    assert book.note(fires(LOW)), "it is news again"


def test_repeated_alert_goes_on(book, clock):
    for _ in range(5):
        book.note(fires(LOW))
        clock.now += STALE_S - 1
    assert book.firing(LLAMA) == {LOW}


def test_alertmanager_without_a_heartbeat_is_silent(book, clock):
    assert book.is_silent, "nothing was ever heard"
    book.note(fires(LOW))
    assert book.is_silent, "one alert does not tell that others would come"
    assert not book.note(Alert(HEARTBEAT, None, True))
    assert not book.is_silent
    clock.now += STALE_S + 0.1
    assert book.is_silent


def test_alertmanager_whose_heartbeat_resolves_is_silent_at_once(book):
    """Prometheus is gone, and Alertmanager says so."""
    book.note(Alert(HEARTBEAT, None, True))
    book.note(Alert(HEARTBEAT, None, False))
    assert book.is_silent


def test_alert_without_a_macroinstance_is_ignored(book):
    assert not book.note(Alert("Other", None, True))
    assert book.is_silent


def test_deleted_macroinstance_has_no_firing_alerts(book):
    book.note(fires(LOW))
    book.forget(LLAMA)
    book.forget(QWEN)
    assert book.firing(LLAMA) == frozenset()
