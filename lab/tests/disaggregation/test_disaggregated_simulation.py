"""Prefills and decodes on separate instances."""

from dataclasses import replace
from random import Random

import pytest

from macroserve.sim.hardware.links import Link
from macroserve.sim.instance import InstanceSpec
from macroserve.sim.result_collector import ResultCollector
from macroserve.workload.arrivals import Arrival, poisson
from macroserve_lab.disaggregation.instances import PrefillInstance
from macroserve_lab.disaggregation.simulation import disaggregated_cell
from macroserve_lab.disaggregation.topology import KvTransfers, Topology, Transfer

SLOW = Link("slow", 1e6, 0.0)
FAST = Link("fast", 1e12, 0.0)


@pytest.fixture
def ends(monkeypatch):
    """Records by id, as they end."""
    found = {}
    ended = ResultCollector.ended

    def recording(self, record):
        assert record.num_emitted == record.num_output
        assert record.request.request_id not in found, "it ended twice"
        found[record.request.request_id] = record
        ended(self, record)

    monkeypatch.setattr(ResultCollector, "ended", recording)
    return found


@pytest.fixture
def make_cell(config, latency):
    def build(
        transfer=Transfer.NETWORK,
        instances=4,
        ratio=0.5,
        inside=FAST,
        network=FAST,
        token_bytes=1e4,
        prefill_step_s=None,
        **fields,
    ):
        engine = InstanceSpec.known(replace(config, **fields), latency)
        prefills = None
        if prefill_step_s is not None:
            prefills = replace(engine, execution_time_s=lambda *batch: prefill_step_s)
        transfers = KvTransfers(Topology(2, inside, network), transfer)
        return disaggregated_cell(
            engine, instances, ratio, transfers, token_bytes, prefill_spec=prefills
        )

    return build


def prefills(cell):
    return [isinstance(each, PrefillInstance) for each in cell.router.instances.values()]


def test_each_node_has_instances_that_prefill_and_decode_if_caches_stay_in_it(make_cell):
    assert prefills(make_cell(Transfer.NETWORK)) == [True, True, False, False]
    assert prefills(make_cell(ratio=0.25)) == [True, False, False, False]
    assert prefills(make_cell(Transfer.NODE)) == [True, False, True, False]
    assert prefills(make_cell(Transfer.NODE, ratio=0.1)) == [True, False, True, False]
    with pytest.raises(ValueError, match="an instance each"):
        make_cell(instances=1)


@pytest.mark.parametrize("transfer", Transfer)
@pytest.mark.parametrize("num_blocks", [1024, 96])
def test_disaggregated_cell_ends_every_request_and_frees_every_block(
    transfer, num_blocks, make_cell, ends
):
    cell = make_cell(transfer, num_blocks=num_blocks)
    random = Random(3)
    lengths = [(random.randint(10, 500), random.randint(1, 200)) for _ in range(256)]
    arrivals = [*poisson([6.0], 30.0, lengths, random), Arrival(500.0, 10, 2)]
    outcome = cell.serve(arrivals)
    assert len(ends) == outcome.requests == len(arrivals)
    for instance in cell.router.instances.values():
        running = instance.policy.running
        running.blocks.check()
        assert running.blocks.free == num_blocks
        assert instance.num_requests == 0


def test_slow_transfer_delays_the_second_token_alone(make_cell, ends):
    cell = make_cell(Transfer.NODE, inside=SLOW)
    cell.serve([Arrival(1.0, 1000, 10)])
    slow = ends["request-0"]
    ends.clear()
    make_cell(Transfer.NODE).serve([Arrival(1.0, 1000, 10)])
    fast = ends["request-0"]
    assert slow.first_s == fast.first_s
    # 1000 tokens of 10 kB at 1 MB/s
    assert slow.gaps_s[0] - fast.gaps_s[0] == pytest.approx(10.0, rel=1e-3)
    assert list(slow.gaps_s[1:]) == pytest.approx(list(fast.gaps_s[1:]), rel=1e-3)
    assert slow.decoding_s == pytest.approx(fast.decoding_s + 10.0, rel=1e-3)


def test_transfers_of_one_node_wait_for_its_link(make_cell, ends):
    cell = make_cell(network=SLOW, ratio=0.25)
    cell.serve([Arrival(1.0, 1000, 5), Arrival(1.0, 1000, 5)])
    began = sorted(record.decoding_s for record in ends.values())
    assert began[1] - began[0] == pytest.approx(10.0, rel=0.05)


def test_kv_cache_stays_until_its_receiver_has_room(make_cell, ends):
    """The decoding instance of 64 blocks holds one of these at a time."""
    cell = make_cell(instances=2, num_blocks=64, max_model_len=2000)
    cell.serve([Arrival(1.0, 1500, 20), Arrival(1.0, 1500, 20)])
    first, second = sorted(ends.values(), key=lambda record: record.last_s)
    assert second.decoding_s >= first.last_s
    assert second.first_s < first.last_s, "it was prefilled meanwhile"


def test_response_of_one_token_needs_no_transfer(make_cell, ends):
    make_cell(network=SLOW).serve([Arrival(1.0, 1000, 1)])
    assert ends["request-0"].last_s == ends["request-0"].first_s


def test_prefills_alone_run_on_their_own_device(make_cell, ends):
    make_cell().serve([Arrival(1.0, 400, 10)])
    same = ends.pop("request-0")
    make_cell(prefill_step_s=0.5).serve([Arrival(1.0, 400, 10)])
    other = ends["request-0"]
    assert other.first_s == 1.5 > same.first_s
    assert list(other.gaps_s[1:]) == pytest.approx(list(same.gaps_s[1:]))
