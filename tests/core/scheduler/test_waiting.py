"""The waiting queue keeps two orders and sums, and ages late requests."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from macroserve.core.request import Slo
from macroserve.core.scheduler.waiting import WaitingQueue
from macroserve.core.strategy import Ordering, WaitingPrompt


def names(sequences):
    return [seq.request_id for seq in sequences]


arrivals = st.lists(
    st.tuples(st.integers(0, 5), st.sampled_from((1.0, 2.0)), st.booleans(), st.integers(1, 99)),
    max_size=30,
)


def by_own_key(prompt: WaitingPrompt) -> float:
    """Return a key that is another one than those of all named orderings."""
    return prompt.num_tokens % 7


@pytest.mark.parametrize("ordering", [*Ordering, by_own_key])
@given(arrivals, st.lists(st.integers(0, 29)))
def test_waiting_queue_after_any_operations_equals_a_sorted_list(
    make_sequence, ordering, wanted, leaving
):
    queue, model = WaitingQueue(ordering), []
    for index, (arrival_s, ttft_s, streaming, prompt) in enumerate(wanted):
        seq = make_sequence(
            f"r{index}",
            index,
            arrival_s=arrival_s,
            prompt=prompt + 1,
            cost_s=prompt / 10,
            slo=Slo(ttft_s, 0.1),
            streamed=int(streaming),
        )
        queue.add(seq)
        model.append(seq)
    for index in leaving:
        if index < len(model):
            queue.remove(model.pop(index))

    def place(seq):
        if seq.is_streaming:
            return (0, seq.arrival_s, seq.ordinal)
        key = {
            Ordering.FCFS: seq.arrival_s,
            Ordering.EDF: seq.deadline_s,
            Ordering.SJF: seq.num_prompt,
            Ordering.LJF: -seq.num_prompt,
            Ordering.SLACK: seq.deadline_s - seq.prefill_s,
            by_own_key: seq.num_prompt % 7,
        }[ordering]
        return (1, key, seq.ordinal)

    assert names(queue) == names(sorted(model, key=place))
    assert len(queue) == len(model)
    assert queue.num_tokens == sum(seq.num_prompt for seq in model)
    assert queue.prefill_s == pytest.approx(sum(seq.prefill_s for seq in model))
    assert queue.cost_s == pytest.approx(sum(seq.cost_s for seq in model))
    assert queue.predicted_tokens == sum(seq.num_remaining for seq in model)
    in_turn = [*queue.resumed.seqs, *queue.by_arrival.seqs]
    for start in range(len(model) + 1):
        assert queue.some(start, 3) == in_turn[start : start + 3]
    assert queue.oldest_arrival_s() == min((seq.arrival_s for seq in model), default=None)
    fresh = [seq for seq in model if not seq.is_streaming]
    by_ttft = {
        ttft_s: [s for s in fresh if s.request.slo.ttft_s == ttft_s] for ttft_s in (1.0, 2.0)
    }
    assert queue.prefills_by_ttft() == pytest.approx(
        {ttft_s: sum(s.prefill_s for s in alike) for ttft_s, alike in by_ttft.items() if alike}
    )
    for moment_s in (0.0, 2.0, 3.5):
        assert queue.num_due_before(moment_s) == sum(s.deadline_s < moment_s for s in fresh)


def test_response_ratio_order_starts_with_the_longest_wait_per_cost(make_sequence):
    queue = WaitingQueue(Ordering.EDF)
    for ordinal, (name, waited_s, cost_s, predicted) in enumerate(
        [
            ("patient", 8.0, 1.0, 100),  # 0.08
            ("costly", 2.0, 4.0, 10),  # 0.05
            ("short", 2.0, 1.0, 10),  # 0.2
            ("long", 2.0, 1.0, 50),  # 0.04
            ("silent", 0.3, 1.0, 0),  # 0.3: nothing is expected of it, and something will come
        ]
    ):
        arrival_s = 10.0 - waited_s
        seq = make_sequence(name, ordinal, arrival_s=arrival_s, cost_s=cost_s, predicted=predicted)
        queue.add(seq)
    ordered = names(queue.by_response_ratio(10.0))
    assert ordered == ["silent", "short", "patient", "costly", "long"]
    assert names(queue.by_response_ratio(1e6))[0] == "silent", "and a long wait outweighs all"
    assert len(queue) == 5
