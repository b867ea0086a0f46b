from math import inf

from macroserve.sim.simulation import EventQueue


def test_event_queue_pops_by_time_and_equal_times_in_order_of_insertion():
    queue = EventQueue()
    for at_s, event in [(2.0, "c"), (1.0, "a"), (2.0, "d"), (1.0, "b"), (0.5, "first")]:
        queue.put(at_s, event)
    order = []
    while queue.next_s < inf:
        order.append(queue.pop())
    assert order == [(0.5, "first"), (1.0, "a"), (1.0, "b"), (2.0, "c"), (2.0, "d")]
