"""Apt-Serve decides the type of an iteration, and whose caches a decode iteration keeps."""

from typing import NamedTuple

import pytest

from macroserve.core.batch import BatchKind
from macroserve.core.request import Slo
from macroserve.core.scheduler.admission import Admission
from macroserve.core.scheduler.blocks import CacheKind
from macroserve.core.scheduler.candidates import Candidates
from macroserve.core.scheduler.estimators import Inflow, LengthPredictor
from macroserve.core.scheduler.iteration import DecodeTurn, IterationInputs, Plan
from macroserve.core.scheduler.running import Running
from macroserve.core.scheduler.waiting import WaitingQueue
from macroserve.core.status import Phase

NOW = 1000.0
PATIENT = Slo(ttft_s=60.0, tpot_s=30.0)
HIDDEN = CacheKind.HIDDEN
STRATEGIES = ("aptserve", "aptserve-s")


class Decode(NamedTuple):
    """A running request has ``num_tokens`` in its cache, which fill its blocks if they are full
    ones, and expects ``num_more``; it has been pending for ``pending_s``."""

    name: str
    num_tokens: int
    cache: CacheKind = CacheKind.KV
    num_more: int = 50
    pending_s: float = 1.0
    is_late: bool = False


class Outcome(NamedTuple):
    kind: BatchKind
    decodes: list[str]
    preempted: list[str]
    prefills: dict[str, CacheKind]


@pytest.fixture
def decide(make_config, make_sequence, make_latency):
    """Return a function that decides one iteration.

    running: the requests that decode.
    begun: seconds for which a prompt has waited of which a part is done, if there is one.
    waiting: seconds for which each waiting prompt, of ``prompt`` tokens, has waited.
    free: blocks that nobody holds, before the decodes get slots for their next tokens.
    rho_s: time to rebuild keys and values of a token.
    """

    def build(
        strategy,
        *running,
        free=0,
        waiting=(),
        prompt=100,
        begun=None,
        rho_s=1e-9,
        slo=PATIENT,
        **fields,
    ):
        sizes = {"num_blocks": 4096, "hidden_states_per_block": 32, "max_num_seqs": 64}
        config = make_config(strategy, slo=slo, **sizes, **fields)
        held = Running.of(config, None)
        for ordinal, each in enumerate(running):
            arrival_s = NOW - each.pending_s - (100 * slo.ttft_s if each.is_late else 0.0)
            seq = make_sequence(
                each.name,
                ordinal,
                arrival_s=arrival_s,
                prompt=each.num_tokens - 1,
                new=1 + each.num_more,
                slo=slo,
            )
            slots = 32 if each.cache is HIDDEN else 16
            held.admit(seq, -(-each.num_tokens // slots), each.cache)
            seq.emit(1, NOW - each.pending_s)
            held.start_decoding(seq)
        if begun is not None:
            seq = make_sequence("begun", 99, arrival_s=NOW - begun, prompt=100, slo=slo)
            held.admit(seq, 7)
            seq.num_computed = 50
        queue = WaitingQueue(config.strategy.ordering)
        for index, waited_s in enumerate(waiting):
            name = f"w{index}"
            fields = {"arrival_s": NOW - waited_s, "prompt": prompt, "slo": slo}
            queue.add(make_sequence(name, 100 + index, **fields))
        held.blocks.grant("others", held.blocks.free - free)
        assert held.make_room() == []
        latency = make_latency()
        latency.rebuild_s_per_token = rho_s
        inputs = IterationInputs(
            now=NOW,
            config=config,
            latency=latency,
            lengths=LengthPredictor(),
            waiting=queue,
            running=held,
            phase=Phase.DECODE,
            phase_since_s=NOW,
            prefilled_s=NOW,
            pace_s=0.0,
            turn=DecodeTurn.of_all(held.decoding),
            decode_s=held.decoding.step_s(latency),
            inflow=Inflow(),
        )
        plan = config.strategy.batch(inputs, Admission(inputs, Candidates(inputs)))
        return Outcome(
            plan.kind,
            list(plan.decodes),
            [seq.request_id for seq in plan.preempted],
            {pick.seq.request_id: pick.cache for pick in plan.picks},
        )

    return build


# -- type of the iteration


def test_late_prompts_count_their_whole_wait_in_the_type_of_iteration(decide):
    decodes = [Decode("a", 20, pending_s=3.0), Decode("b", 20, pending_s=3.0)]
    late = Slo(ttft_s=5.0, tpot_s=30.0)
    assert decide("aptserve", *decodes, free=99, waiting=[7.0], slo=late).kind is BatchKind.PREFILL
    assert decide("aptserve", *decodes, free=99, waiting=[6.0], slo=late).kind is BatchKind.DECODE


def test_late_decodes_count_their_whole_wait_in_the_type_of_iteration(decide):
    late = Slo(ttft_s=5.0, tpot_s=0.1)
    decode = Decode("a", 20, pending_s=3.0)
    assert decide("aptserve", decode, free=99, waiting=[2.9], slo=late).kind is BatchKind.DECODE


def test_begun_prompt_counts_in_the_type_of_iteration(decide):
    decode = Decode("a", 20, pending_s=1.0)
    assert decide("aptserve", decode, free=99, begun=1.1).prefills == {"begun": CacheKind.KV}
    assert decide("aptserve", decode, free=99, begun=0.9).decodes == ["a"]


# -- decode iteration: who is left out


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_decodes_with_memory_all_run(decide, strategy):
    outcome = decide(strategy, Decode("a", 32), Decode("b", 64, HIDDEN), free=2)
    assert outcome == (BatchKind.DECODE, ["a", "b"], [], {})


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("late", ["a", "b", "c"])
def test_decodes_without_memory_leave_the_late_one_out(decide, strategy, late):
    running = [Decode(name, 32, is_late=name == late) for name in "abc"]
    outcome = decide(strategy, *running)
    assert outcome.preempted == [late]
    assert outcome.decodes == [name for name in "abc" if name != late]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_decodes_without_memory_leave_out_the_least_wait_for_its_memory(decide, strategy):
    """Waits far above the time to compute a cache again decide: equal ones for unequal memory."""
    running = [Decode(name, num, pending_s=25.0) for name, num in (("a", 32), ("b", 64), ("c", 32))]
    assert decide(strategy, *running).preempted == ["b"]
    running = [Decode(name, 32, pending_s=p) for name, p in (("a", 25.0), ("b", 25.0), ("c", 9.0))]
    assert decide(strategy, *running).preempted == ["c"]
    assert decide(strategy, *reversed(running)).preempted == ["c"]


def test_decodes_without_memory_keep_the_cache_that_takes_longest_to_compute(decide):
    """Hidden states hold twice as many tokens in as many blocks."""
    kv, hidden = Decode("kv", 64, pending_s=0.0), Decode("hidden", 128, HIDDEN, pending_s=0.0)
    for running in ((kv, hidden), (hidden, kv)):
        assert decide("aptserve", *running).preempted == ["kv"]
        # Unless each step with it costs more than that.
        assert decide("aptserve", *running, rho_s=1.0).preempted == ["hidden"]


def test_decodes_that_fit_beside_the_most_valuable_one_run(decide):
    """The last is worth more than all others, which have more value for their memory."""
    last = Decode("last", 96, pending_s=29.0)
    running = [*[Decode(name, 16, pending_s=9.0) for name in "abc"], last]
    outcome = decide("aptserve", *running)
    assert "last" in outcome.decodes and len(outcome.decodes) == 2


def test_decode_alone_without_memory_lets_a_begun_prompt_go_on(decide):
    outcome = decide("aptserve", Decode("a", 32, pending_s=5.0), begun=0.5)
    assert (outcome.preempted, outcome.decodes) == (["a"], [])
    assert list(outcome.prefills) == ["begun"]


def test_chunk_begins_no_prompt_in_an_iteration_that_discards_a_cache(decide):
    running = [Decode("a", 32), Decode("b", 320, pending_s=0.5)]
    outcome = decide("aptserve-s", *running, waiting=[1.0])
    assert (outcome.decodes, outcome.preempted, outcome.prefills) == (["a"], ["b"], {})
    outcome = decide("aptserve-s", *running, free=40, waiting=[1.0])
    assert (outcome.decodes, list(outcome.prefills)) == (["a", "b"], ["w0"])


def test_chunk_begins_no_prompt_in_memory_that_kept_decodes_need(decide):
    """Drafted tokens make each decode need three blocks more, of which two are free."""
    running = [Decode("a", 32), Decode("b", 32)]
    drafts = {"num_draft_slots": 40, "prompt": 8}
    outcome = decide("aptserve-s", *running, free=2, waiting=[1.0], **drafts)
    assert (outcome.decodes, outcome.preempted, outcome.prefills) == (["a"], ["b"], {})


def test_scheduler_drops_what_lost_its_cache_from_the_plan(
    make_scheduler, make_executor, make_request
):
    def batch(inputs, admission):
        decoding = inputs.decoding
        lost = [decoding["r0"]] if "r0" in decoding and len(decoding) == 2 else []
        picks = [] if lost else admission.pick(512)
        return Plan(picks, tuple(decoding), "all", preempted=lost)

    scheduler = make_scheduler("aptserve", changes={"batch": batch})
    executor = make_executor(scheduler, {"r0": 9, "r1": 9})
    for name in ("r0", "r1"):
        executor.add(make_request(name, 0.0, 60, 100, PATIENT))
    executor.step()
    batch = executor.step()
    assert (batch.decodes, batch.preempted) == (("r1",), ("r0",))
    assert [seq.request_id for seq in scheduler.waiting] == ["r0"]
    executor.drain()
    assert executor.ended == {"r0": "finished", "r1": "finished"}


# -- decode iteration: which cache


def test_hidden_states_that_cost_more_than_a_prefill_are_given_up(decide):
    running = [
        Decode("kv", 40),
        Decode("short", 40, HIDDEN, num_more=20),
        Decode("long", 40, HIDDEN, num_more=200),
    ]
    dear = {"free": 99, "rho_s": 1e-4}
    outcome = decide("aptserve", *running, **dear)
    assert (outcome.decodes, outcome.preempted) == (["kv", "short"], ["long"])


@pytest.mark.parametrize(
    "changed",
    [{"rho_s": 1e-9}, {"waiting": [0.1]}, {"free": 18}, {"free": 20}],
    ids=["rebuilding is cheap", "a prompt waits", "no memory for later", "no memory for now"],
)
def test_hidden_states_are_kept_otherwise(decide, changed):
    given = {"free": 99, "rho_s": 1e-4, **changed}
    outcome = decide("aptserve", Decode("long", 40, HIDDEN, num_more=300), **given)
    assert (outcome.decodes, outcome.preempted) == (["long"], [])


def test_running_keys_and_values_come_back_as_hidden_states_when_memory_runs_short(
    make_scheduler, make_executor, make_request
):
    scheduler = make_scheduler("aptserve", num_blocks=24, hidden_states_per_block=32)
    scheduler.latency.rebuild_s_per_token = 1e-9
    executor = make_executor(scheduler, {f"r{i}": 90 for i in range(4)})
    for index in range(4):
        executor.add(make_request(f"r{index}", 0.0, 60, 100, PATIENT))
    kinds: dict[str, list[bool]] = {f"r{i}": [] for i in range(4)}
    while executor.alive:
        executor.now += 0.01
        for prefill in executor.step().prefills:
            kinds[prefill.request_id].append(prefill.hidden)
    assert [False, True] in kinds.values()
    assert set(executor.ended.values()) == {"finished"}


# -- prefill iteration: the penalty of equation 5


@pytest.mark.parametrize(("num_running", "hides"), [(0, True), (20, False)])
def test_hidden_states_are_not_worth_the_time_that_many_requests_lose(decide, num_running, hides):
    """Memory suffices for one and a half of two prompts that have waited for a second."""
    running = [Decode(f"r{i}", 20, pending_s=0.0) for i in range(num_running)]
    outcome = decide("aptserve", *running, free=12, waiting=[1.0, 1.0], rho_s=1e-3)
    assert len(outcome.prefills) == 1 + hides
    assert (HIDDEN in outcome.prefills.values()) == hides


def test_hidden_states_are_not_worth_a_long_time_to_rebuild(decide):
    outcome = decide("aptserve", free=12, waiting=[1.0, 1.0], rho_s=1e-1)
    assert list(outcome.prefills.values()) == [CacheKind.KV]
