"""The scheduler loses no request under any load and strategy: every batch fits, and every request
ends."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.scheduler_events import apply

from macroserve.core.request import Slo
from macroserve.core.status import Pool
from macroserve.core.strategies import STRATEGIES
from macroserve.core.strategy import HybridCache, Ordering

VARIANTS = {
    **STRATEGIES,
    "sarathi with exact KV": replace(STRATEGIES["sarathi"], exact_kv=True),
    "ecoserve with exact KV": replace(STRATEGIES["ecoserve"], exact_kv=True),
    "vllm with triage": replace(STRATEGIES["vllm"], ordering=Ordering.EDF, triage=True),
    "ecoserve with offload": replace(STRATEGIES["ecoserve"], offload=True),
    "unified without exact KV": replace(STRATEGIES["unified"], exact_kv=False),
    **{
        f"{name} with hidden states": replace(strategy, hybrid_cache=HybridCache.CHEAP)
        for name, strategy in STRATEGIES.items()
        if not strategy.keeps_hidden
    },
}

slos = st.builds(Slo, st.sampled_from((0.05, 0.5, 5.0)), st.sampled_from((0.001, 0.03, 0.1)))
requests = st.fixed_dictionaries(
    {
        "gap_s": st.sampled_from((0.0, 0.0, 0.01, 0.3)),
        "age_s": st.sampled_from((0.0, 0.0, 0.4)),
        "prompt": st.integers(1, 160),
        "new": st.integers(1, 60),
        "length": st.integers(1, 60),
        "streamed": st.sampled_from((0, 0, 0, 3)),
        "adapter": st.sampled_from((None, None, "a", "b", "c")),
        "slo": slos,
    }
)
events = st.lists(
    st.tuples(st.integers(0, 40), st.sampled_from(("abort", "drain", "undrain", "hp", "lp"))),
    max_size=6,
)
shortfalls = st.lists(st.tuples(st.sampled_from((0, 0, 1, 30, 500)), st.booleans()), max_size=12)
limits = st.fixed_dictionaries(
    {
        "num_blocks": st.integers(14, 60),
        "block_size": st.sampled_from((8, 16)),
        "max_num_seqs": st.integers(1, 8),
        "max_batch_tokens": st.integers(8, 200),
        "chunk_tokens": st.integers(4, 64),
        "drop_late": st.booleans(),
        "hidden_states_per_block": st.sampled_from([None, 8, 24, 32]),
        "max_adapters": st.sampled_from((None, 1, 2)),
        "late_value": st.sampled_from((0.0, 0.4)),
        "pool": st.sampled_from(Pool),
        "slo": slos,
    }
)


@pytest.mark.parametrize("name", VARIANTS)
@given(
    st.lists(requests, min_size=1, max_size=25),
    limits,
    events,
    shortfalls,
    st.sampled_from((0.3, 1, 4)),
    st.lists(st.integers(1, 30), max_size=4),
    st.sampled_from((None, 0, 1, 3)),
    st.sampled_from((1, 1, 2, 4)),
    st.booleans(),
)
def test_requests_under_any_load_end_once_within_all_limits(
    name,
    make_scheduler,
    make_executor,
    make_ahead_executor,
    make_pipeline_executor,
    make_request,
    wanted,
    fields,
    events,
    short,
    slowdown,
    seen_lengths,
    ahead,
    stages,
    is_async,
):
    """The executor checks each batch."""
    scheduler = make_scheduler(VARIANTS[name], **fields)
    for length in seen_lengths:
        scheduler.lengths.observe(make_request("seen"), length)
    lengths = {f"r{i}": min(w["length"], w["new"]) for i, w in enumerate(wanted)}
    how = {"slowdown": slowdown, "shortfalls": short}
    if stages > 1:
        executor = make_pipeline_executor(
            scheduler, lengths, stages=stages, is_async=is_async, **how
        )
    elif ahead is None:
        executor = make_executor(scheduler, lengths, **how)
    else:
        executor = make_ahead_executor(scheduler, lengths, ahead=ahead, **how)
    arrivals, at_s = [], 0.0
    for index, w in enumerate(wanted):
        at_s += w["gap_s"]
        prompt = w["prompt"] + w["streamed"]
        sizes = (prompt, w["new"], w["slo"], w["streamed"], w["adapter"])
        request = make_request(f"r{index}", at_s - w["age_s"], *sizes)
        arrivals.append((at_s, request))
    events = sorted(events, reverse=True)
    refused, statuses = 0, []
    for iteration in range(20_000):
        while arrivals and arrivals[0][0] <= executor.now:
            refused += executor.add(arrivals.pop(0)[1]) is not None
        while events and events[-1][0] <= iteration:
            apply(events.pop()[1], executor)
        if not executor.alive:
            if not arrivals:
                break
            executor.now = arrivals[0][0]
            continue
        executor.step()
        statuses.append(scheduler.status(executor.now))
    executor.drain(0)

    assert len(executor.ended) + refused == len(wanted)
    admitted = [i for status in statuses for i in status.admitted]
    assert len(admitted) == len(set(admitted)) and set(admitted) <= set(executor.requests)
    final = scheduler.status(executor.now)
    assert (final.num_waiting, final.num_running, final.waiting_tokens) == (0, 0, 0)
    assert final.remaining_tokens == 0 and final.free_blocks == final.num_blocks
    ends = list(executor.ended.values())
    assert final.finished == ends.count("finished") + ends.count("drop")
    assert final.attained <= ends.count("finished")
    assert scheduler.sequences == {}
