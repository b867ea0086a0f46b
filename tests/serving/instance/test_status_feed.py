"""A new reader of an instance's statuses sees whether its engine works now."""

from macroserve.api.messages import HEARTBEAT_S
from macroserve.serving.instance.server import StatusFeed


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


async def first_lines(feed: StatusFeed) -> list[bytes]:
    """Return the lines that a new reader gets at once."""
    return (await anext(feed.read())).splitlines()


def published(clock: Clock, *statuses: bytes) -> StatusFeed:
    feed = StatusFeed(clock)
    for status in statuses:
        feed.publish(status)
    return feed


async def test_reader_of_a_working_engine_begins_with_the_two_latest_statuses() -> None:
    clock = Clock()
    feed = published(clock, b"1", b"2", b"3")
    assert await first_lines(feed) == [b"1", b"2", b"3"]
    assert await first_lines(feed) == [b"2", b"3"]
    feed.publish(b"4")
    clock.now_s += HEARTBEAT_S
    assert await first_lines(feed) == [b"3", b"4"]


async def test_reader_of_an_engine_that_reports_nothing_new_begins_with_the_latest_status() -> None:
    clock = Clock()
    feed = published(clock, b"1", b"2", b"3")
    clock.now_s += HEARTBEAT_S + 0.01
    assert await first_lines(feed) == [b"3"], "old statuses do not show that it works"
    feed.publish(b"4")
    assert await first_lines(feed) == [b"3", b"4"]


async def test_reader_of_an_engine_with_one_status_begins_with_that() -> None:
    assert await first_lines(published(Clock(), b"1")) == [b"1"]
    assert await first_lines(published(Clock())) == [b""]
